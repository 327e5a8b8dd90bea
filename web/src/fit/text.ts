/** Foreign text of several lines. */

import * as format from "../format.js";

/** Each line made harmless; indents stay. */
export function lines(text: string): string[] {
  const found = text.split(/\r?\n/).map((line) => format.clean(line, 500));
  if (found.at(-1) === "") found.pop();
  return found;
}
