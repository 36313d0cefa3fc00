import { fileURLToPath } from "node:url";
import tailwind from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";
import { finishBuild } from "./scripts/finish_build.ts";

const source = fileURLToPath(new URL("./src", import.meta.url));

export default defineConfig(({ mode }) => ({
  plugins: [react(), tailwind(), finishBuild()],
  resolve: { alias: { "@": source } },
  define: {
    // A build for tests also has the gallery of every row and card (`npm run build -- --mode gallery`).
    "import.meta.env.VITE_GALLERY": JSON.stringify(mode === "gallery" || mode === "development" ? "1" : ""),
  },
  build: {
    outDir: fileURLToPath(new URL("../src/rookery/web_dist", import.meta.url)),
    emptyOutDir: true,
    target: "es2022",
    // Styles and fonts stay files of their own origin: the page's policy allows no inline ones but images.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rolldownOptions: {
      // The second page draws diagrams, in a frame without an origin. The server gives it a policy of its own.
      input: {
        index: fileURLToPath(new URL("./index.html", import.meta.url)),
        diagram: fileURLToPath(new URL("./sandbox/diagram.html", import.meta.url)),
      },
      output: {
        // Libraries change less often than the application: they stay in the browser's cache over a new version.
        // Only what the start needs: the lines of a long diff are windowed by a part of the panel.
        codeSplitting: {
          groups: [
            { name: "react", test: /node_modules\/(react|react-dom|scheduler)\// },
            { name: "router", test: /node_modules\/(react-router|@tanstack\/(react-query|query-core)|zustand)\// },
            {
              name: "controls",
              test: /node_modules\/(@radix-ui|@floating-ui|radix-ui|aria-hidden|react-remove-scroll[\w-]*|react-style-singleton|use-[\w-]+|get-nonce|tslib)\//,
            },
            { name: "markdown", test: /web\/node_modules\/(marked|remend)\// },
            // What the start needs of the application. Without these groups, each part that is loaded later splits the
            // modules that it shares with the start into small files, which compress badly.
            { name: "base", tags: ["$initial"], test: /\/src\/(api|chat|lib|state|ui)\/|\/lucide-react\// },
            { name: "start", tags: ["$initial"], test: /\/src\/(app|features)\// },
          ],
        },
      },
    },
  },
  worker: { format: "es" },
  server: { proxy: { "/api": { target: process.env.ROOKERY_URL ?? "http://127.0.0.1:8080", ws: true } } },
  test: {
    environment: "node",
    include: ["src/**/*.test.{ts,tsx}", "tests/**/*.test.ts"],
    testTimeout: 30_000,
  },
}));
