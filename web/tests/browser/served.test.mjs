// The page as a server sends it: moments, finer points and other settings are fetched.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { page as sample } from "../sample.mjs";
import { drawn, html, open, show, text } from "./support.mjs";

let server;
let origin;
let asked = [];
let tries = 0;

/** All blocks and segments at one moment, as rows of their own. */
function moment(tick) {
  const { memory } = sample();
  const classes = { 2: [100, 256, 28], 3: [100, 500, 40] }[tick] ?? [100, 0, 28];
  const data = { ...memory, complete: true };
  return { tick, reserved: 1536, classes, memory: data };
}

before(async () => {
  server = createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url, "http://localhost");
    asked.push(request.url);
    const send = (type, body, status = 200) => {
      response.writeHead(status, { "content-type": type });
      response.end(body);
    };
    const json = (value, status) => send("application/json", JSON.stringify(value), status);
    if (pathname === "/r") return send("text/html", html(null, "/api/recordings/one%2Ftwo/page"));
    if (pathname === "/gone") return send("text/html", html(null, "/api/recordings/gone/page"));
    const api = "/api/recordings/one%2Ftwo/";
    if (pathname === `${api}page`) {
      const data = sample({ served: { recording: "one/two" } });
      data.memory = {
        ...data.memory,
        complete: false,
        blocks: { born_delta: [], life: [], address_delta: [], sort: [], pending: [] },
      };
      return json(data);
    }
    if (pathname === `${api}moment`) return json(moment(Number(searchParams.get("tick"))));
    if (pathname === `${api}timeline`) return json(sample().timeline);
    if (pathname === `${api}whatif`) {
      tries += 1;
      const curve = {
        conf: "",
        role: "recorded",
        peak_reserved_bytes: 1536,
        peak_allocated_bytes: 640,
        oom: false,
        exact: true,
        best: false,
      };
      return tries < 2
        ? json({}, 202)
        : json({ curves: [{ ...curve, ticks_delta: [0, 2, 3], reserved_delta: [1024, 512, -512] }] });
    }
    return send("text/plain", "not here", pathname === "/favicon.ico" ? 204 : 404);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  origin = `http://127.0.0.1:${server.address().port}`;
});

after(() => {
  server.closeAllConnections();
  server.close();
});

test("moments come from the server, complete", async () => {
  asked = [];
  const { page, close } = await open(null, { online: `${origin}/r`, hash: "#at=2" });
  for (const id of ["flame", "map"]) await show(page, id);
  assert.match(await text(page, "#flame .info"), /^640 B held at the peak/);
  assert.ok(await page.locator("#flame .note").isHidden());
  await page.getByRole("button", { name: "End", exact: true }).first().click();
  await page.waitForFunction(() => /^At the end/.test(document.querySelector(".moment-text").textContent));
  await drawn(page);
  assert.ok(asked.some((url) => url.endsWith("/moment?tick=3")));
  assert.ok(asked.some((url) => url.endsWith("/moment?tick=6")));
  await close();
});

test("finer points are fetched when the timeline is zoomed, other settings when they are there", async () => {
  const { page, close } = await open(null, { online: `${origin}/r` });
  await show(page, "timeline");
  await page.locator(".timeline").focus();
  await page.keyboard.press("+");
  await page.waitForTimeout(200);
  assert.ok(asked.some((url) => /\/timeline\?from=\d+&to=\d+&points=\d+$/.test(url)));
  await page.waitForSelector("#whatif table");
  await close();
});

test("a recording that is gone is a message", async () => {
  const { page, problems } = await open(null, { online: `${origin}/gone`, ready: "failed" });
  assert.match(await text(page, "[role=alert]"), /refused the recording \(404/);
  await page.context().close();
  assert.ok(problems.every((problem) => problem.includes("404")));
});
