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
      output: {
        // Libraries change less often than the application: they stay in the browser's cache over a new version.
        // Only what the start needs: the lines of a long diff are windowed by a part of the panel, and icons are
        // loaded with the pages that show them.
        codeSplitting: {
          groups: [
            { name: "react", test: /node_modules\/(react|react-dom|scheduler)\// },
            { name: "router", test: /node_modules\/(react-router|@tanstack\/(react-query|query-core)|zustand)\// },
            {
              name: "controls",
              test: /node_modules\/(@radix-ui|@floating-ui|radix-ui|aria-hidden|react-remove-scroll[\w-]*|react-style-singleton|use-[\w-]+|get-nonce|tslib)\//,
            },
            { name: "markdown", test: /node_modules\/(marked|remend)\// },
            // Small files compress badly, and the start needs all of these.
            { name: "requests", test: /\/src\/(api|state)\/(chat_list|chats|watch|queries|connection|http)\.ts$/ },
            {
              name: "icons",
              test: /lucide-react\/dist\/esm\/(createLucideIcon|Icon|icons\/(check|x|download|copy))\./,
            },
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
