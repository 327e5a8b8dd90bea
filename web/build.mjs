// Builds the page's script and style and the hashes of both: `node build.mjs [FOLDER]`.
//
// The bundle is the same bytes for the same sources: versions are pinned, nothing in it depends on time or place.

import { createHash } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const folder = path.resolve(process.argv[2] ?? path.join(here, "../crates/gpuheap-report/assets"));

const result = await build({
  absWorkingDir: here,
  entryPoints: { report: "src/main.ts" },
  outdir: folder,
  write: false,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["chrome100", "firefox113", "safari16.4"],
  charset: "ascii",
  // The licence of what is bundled stays in the script.
  legalComments: "inline",
  logLevel: "warning",
});

await mkdir(folder, { recursive: true });
let total = 0;
for (const file of result.outputFiles) {
  const text = file.text.trimEnd();
  // The page holds both between tags of their own: nothing in them may end those.
  if (/<\/(script|style)/i.test(text) || text.includes("<!--")) throw new Error(`${file.path} would end its own tag`);
  await writeFile(file.path, text);
  await writeFile(`${file.path}.sha256`, createHash("sha256").update(text).digest("base64"));
  total += text.length;
  console.log(`${path.basename(file.path)}: ${(text.length / 1024).toFixed(1)} KiB`);
}
console.log(`together: ${(total / 1024).toFixed(1)} KiB`);
