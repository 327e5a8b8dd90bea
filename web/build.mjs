// Builds the page's script and style and the hashes of both: `node build.mjs [FOLDER]`.
//
// The bundle is the same bytes for the same sources: versions are pinned, nothing in it depends on time or place.

import { createHash } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const assets = path.resolve(process.argv[2] ?? path.join(here, "../crates/gpuheap-report/assets"));

const result = await build({
  absWorkingDir: here,
  entryPoints: { report: "src/main.ts", fit: "src/fit/main.ts", folder: "src/folder/main.ts" },
  outdir: here,
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

let total = 0;
for (const file of result.outputFiles) {
  const text = file.text.trimEnd();
  // The page holds both between tags of their own: nothing in them may end those.
  if (/<\/(script|style)/i.test(text) || text.includes("<!--")) throw new Error(`${file.path} would end its own tag`);
  const name = path.basename(file.path);
  // Each bundle goes to the crate that sends it.
  const folder = name.startsWith("folder") ? assets.replace("gpuheap-report", "gpuheap-serve") : assets;
  await mkdir(folder, { recursive: true });
  await writeFile(path.join(folder, name), text);
  await writeFile(path.join(folder, `${name}.sha256`), createHash("sha256").update(text).digest("base64"));
  total += text.length;
  console.log(`${name}: ${(text.length / 1024).toFixed(1)} KiB`);
}
console.log(`together: ${(total / 1024).toFixed(1)} KiB`);
