// Modules of the page for tests in Node: TypeScript is bundled on the way.

import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "..");

/** The module `src/NAME.ts`. */
export async function source(name) {
  const { outputFiles } = await build({
    absWorkingDir: root,
    entryPoints: [`src/${name}.ts`],
    write: false,
    bundle: true,
    format: "esm",
    target: "node20",
    logLevel: "silent",
  });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}
