// axe finds nothing serious, in both themes and in a narrow window.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import test from "node:test";
import { explain, open, PARTS, show } from "./support.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

for (const [recording, options] of [
  ["examples/gpt2_varlen.pickle.gz", {}],
  ["examples/gpt2_varlen.pickle.gz", { dark: true }],
  ["examples/loss_accumulate.pickle.gz", { dark: true }],
  ["examples/llama_oom.pickle.gz", {}],
  ["recordings/edge/two_devices.pickle.gz", { width: 360 }],
]) {
  test(`${recording} ${JSON.stringify(options)}`, async () => {
    const { page, close } = await open(explain(recording), options);
    for (const id of PARTS) await show(page, id);
    await page.locator("#sites tbody button").first().click();
    await page.locator(".map").focus();
    await page.keyboard.press("ArrowRight");
    await page.evaluate(axe);
    const { violations, passed } = await page.evaluate(async () => {
      const found = await globalThis.axe.run(document);
      const short = ({ id, impact, nodes }) => ({
        id,
        impact,
        nodes: nodes.map((node) => node.html.slice(0, 200)),
      });
      return { violations: found.violations.map(short), passed: found.passes.length };
    });
    assert.ok(passed > 20, `${passed} rules applied`);
    const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    for (const { id, impact } of violations) console.log(`axe: ${id} (${impact})`);
    assert.deepEqual(serious, []);
    await close();
  });
}
