// Pictures of the page, kept as output of CI: nothing is compared, people look at them.

import path from "node:path";
import test from "node:test";
import { box, drawn, explain, open, out, PARTS, show } from "./support.mjs";

async function picture(page, name) {
  await page.screenshot({ path: path.join(out, `${name}.png`), fullPage: true });
}

for (const [name, recording, options] of [
  ["fragmentation-light", "examples/gpt2_varlen.pickle.gz", {}],
  ["fragmentation-dark", "examples/gpt2_varlen.pickle.gz", { dark: true }],
  ["leak-light", "examples/loss_accumulate.pickle.gz", {}],
  ["oom-dark", "examples/llama_oom.pickle.gz", { dark: true }],
  ["oom-narrow", "examples/llama_oom.pickle.gz", { width: 360 }],
]) {
  test(`picture ${name}`, async () => {
    const { page, close } = await open(explain(recording), options);
    for (const id of PARTS) await show(page, id);
    await page.evaluate(() => scrollTo(0, 0));
    await drawn(page);
    await picture(page, name);
    await close();
  });
}

test("pictures of the parts", async () => {
  const { page, close } = await open(explain("examples/gpt2_varlen.pickle.gz"));
  for (const id of PARTS) {
    await show(page, id);
    const canvas = { timeline: ".plot .u-over", flame: "#flame canvas", map: "#map canvas" }[id];
    if (canvas) {
      const area = await box(page, canvas);
      await page.mouse.move(area.x + area.width * 0.42, area.y + 50);
      await drawn(page);
    }
    await page.locator(`#${id}`).screenshot({ path: path.join(out, `part-${id}.png`) });
  }
  await page.getByLabel("Compare the picked moment with").selectOption("End");
  await show(page, "flame");
  await page.locator("#flame").screenshot({ path: path.join(out, "part-flame-difference.png") });
  await close();
});
