/** What the part of the address behind `#` says: a section or finding, and a moment. `#map&at=12345`. */

export interface Link {
  /** The id of an element; empty for none. */
  target: string;
  /** The moment. The address names the event after which it is (`at=start`: before the first), as the texts do. */
  tick: number | null;
}

export function readLink(hash: string): Link {
  const link: Link = { target: "", tick: null };
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [name, value] = part.split("=", 2);
    if (name === "at" && value === "start") link.tick = 0;
    else if (name === "at" && value !== undefined && /^\d{1,15}$/.test(value)) link.tick = Number(value) + 1;
    else if (value === undefined && /^[\w-]+$/.test(name)) link.target = name;
  }
  return link;
}

export function writeLink({ target, tick }: Link): string {
  const at = tick === null ? "" : `at=${tick > 0 ? tick - 1 : "start"}`;
  const parts = [target, at].filter((part) => part !== "");
  return parts.length > 0 ? `#${parts.join("&")}` : "";
}
