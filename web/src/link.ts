/** What the part of the address behind `#` says: a section or finding, and a moment. `#map&at=12345`. */

export interface Link {
  /** The id of an element; empty for none. */
  target: string;
  tick: number | null;
}

export function readLink(hash: string): Link {
  const link: Link = { target: "", tick: null };
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [name, value] = part.split("=", 2);
    if (name === "at" && value !== undefined && /^\d{1,15}$/.test(value)) link.tick = Number(value);
    else if (value === undefined && /^[\w-]+$/.test(name)) link.target = name;
  }
  return link;
}

export function writeLink(link: Link): string {
  const parts = [link.target, link.tick === null ? "" : `at=${link.tick}`].filter((part) => part !== "");
  return parts.length > 0 ? `#${parts.join("&")}` : "";
}
