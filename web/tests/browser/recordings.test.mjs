// Every recording makes a page that opens from a file with the network off, with every part in it.

import assert from "node:assert/strict";
import test from "node:test";
import { colours, explain, open, PARTS, recordings, show, text } from "./support.mjs";

const LOOPS = [
  "plain_adam",
  "running_loss",
  "side_stream",
  "leak_oom",
  "kv_cache",
  "varlen_train_expandable",
  "late_recording_leak",
];
const all = [
  ...recordings("recordings/models"),
  ...recordings("recordings/edge"),
  ...recordings("examples"),
  ...recordings("recordings/loops").filter((file) => LOOPS.some((name) => file.endsWith(`/${name}.pickle.gz`))),
];

for (const recording of all) {
  test(recording, async () => {
    const { page, close } = await open(explain(recording));
    for (const id of PARTS) {
      await show(page, id);
      const part = page.locator(`section#${id}`);
      assert.equal(await part.locator("h2").count(), 1, id);
      assert.ok((await part.innerText()).length > 20, `${id} says something`);
    }
    assert.ok((await colours(page, "#timeline .plot canvas")) > 2, "the timeline is drawn");
    assert.ok((await colours(page, "#flame canvas")) > 2, "the flame graph is drawn");
    assert.ok((await colours(page, "#map canvas")) > 2, "the segment map is drawn");
    await sums(page);
    await close();
  });
}

/** The same bytes wherever they are said. */
async function sums(page) {
  const amounts = await text(page, ".amounts");
  const [, allocated, reserved] = /^(.*) allocated of (.*) reserved$/.exec(amounts) ?? [];
  assert.ok((await text(page, "#flame .info")).startsWith(`${allocated} held`), `flame graph: ${allocated}`);
  assert.ok((await text(page, "#map .figures")).includes(`${reserved} reserved`), `segment map: ${reserved}`);
  const ledger = page.locator("#ledger [role=tabpanel]:not([hidden]) .sum td").first();
  assert.equal((await ledger.textContent()).replaceAll("\u00a0", " "), reserved, "ledger");
}
