import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import type { Plugin } from "vite";

// Below this a compressed file saves less than its header costs.
const WORTH_BYTES = 1024;
const TEXT = /\.(css|html|js|json|map|svg|txt|webmanifest)$/;

/** Names the build in its page, then leaves compressed twins beside every text file, which the server sends as they are. */
export function finishBuild(): Plugin {
  let folder = "";
  let isForTests = false;
  return {
    name: "rookery-finish-build",
    apply: "build",
    configResolved: (config) => {
      folder = config.build.outDir;
      isForTests = config.mode === "gallery";
    },
    closeBundle: (error?: Error) => {
      // After a failed build there are no files, and the build's own error is the one to show.
      if (error) return;
      nameBuild(folder);
      if (isForTests) return;
      for (const path of files(folder)) compress(path);
    },
  };
}

/** The same sources give the same name: it is made of what was built. */
function nameBuild(folder: string): void {
  const hash = createHash("sha256");
  for (const path of files(folder).sort()) hash.update(relative(folder, path)).update(readFileSync(path));
  const page = join(folder, "index.html");
  const text = readFileSync(page, "utf8");
  writeFileSync(
    page,
    text.replace(
      'name="rookery-build" content=""',
      `name="rookery-build" content="${hash.digest("hex").slice(0, 12)}"`,
    ),
  );
}

function compress(path: string): void {
  const data = readFileSync(path);
  if (!TEXT.test(path) || data.length < WORTH_BYTES) return;
  const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: data.length };
  writeFileSync(`${path}.br`, brotliCompressSync(data, { params }));
  writeFileSync(`${path}.gz`, gzipSync(data, { level: 9 }));
}

function files(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
}
