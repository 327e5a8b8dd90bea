/** Where the page's data comes from: the tag that the writer of the page filled, or the server that it names. */

import type { Page } from "./page.js";

const SCHEMA = "gpuheap.page/1";

/** Why there is nothing to show, as a person should read it. */
export class LoadError extends Error {}

/** The data, which says that it is of the form `schema`; `what` it is called in messages. */
export async function load<T = Page>(root: Document, schema = SCHEMA, what = "recording"): Promise<T> {
  const tag = root.getElementById("gpuheap-data");
  if (!tag) throw new LoadError(`This page holds no ${what}: it is cut short or was changed`);
  const address = tag.getAttribute("data-src");
  const text = address ? await fetched(address) : await decoded(tag.textContent ?? "", what);
  return parsed<T>(text, schema, what);
}

async function fetched(address: string): Promise<string> {
  let response: Response;
  try {
    response = await fetch(address);
  } catch {
    throw new LoadError("The server does not answer: start `gpuheap serve` again and reload");
  }
  if (!response.ok) throw new LoadError(`The server refused the recording (${response.status} ${response.statusText})`);
  return response.text();
}

/** Base64 of gzip to text. */
export async function decoded(base64: string, what = "recording"): Promise<string> {
  if (typeof DecompressionStream === "undefined") {
    throw new LoadError(
      `This browser cannot unpack the ${what}: it lacks DecompressionStream (browsers since 2023 have it)`,
    );
  }
  try {
    const stream = new Blob([bytes(base64.trim())]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).text();
  } catch {
    throw new LoadError(`The ${what} in this page cannot be unpacked: the file is damaged or cut short`);
  }
}

function bytes(base64: string): Uint8Array<ArrayBuffer> {
  const binary = atob(base64);
  const array = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) array[index] = binary.charCodeAt(index);
  return array;
}

export function parsed<T = Page>(text: string, schema = SCHEMA, what = "recording"): T {
  let page: { schema?: unknown };
  try {
    page = JSON.parse(text) as { schema?: unknown };
  } catch {
    throw new LoadError(`The ${what} in this page is not readable: the file is damaged`);
  }
  if (page?.schema !== schema) {
    throw new LoadError(`This page was written for another form of data (${String(page?.schema)}); it shows ${schema}`);
  }
  return page as T;
}
