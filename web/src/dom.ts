/** Making elements. Text goes in as text: nothing here ever parses markup. */

import { clean } from "./format.js";

type Child = Node | string | null | undefined | false;

interface Properties {
  class?: string;
  id?: string;
  [attribute: string]: string | number | boolean | null | undefined | ((event: Event) => void);
}

/** Figures stay on one line with their units. */
export function tied(text: string): string {
  return text.replace(/(\d) (?=(?:B|[KMGTPE]iB|%|h|min|s|ms|µs)(?![\w]))/g, "$1\u00a0");
}

/** An element with attributes (`on…` are listeners) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  const kept = children.filter((child): child is Node | string => Boolean(child));
  element.append(...kept.map((child) => (typeof child === "string" && tag !== "code" ? tied(child) : child)));
  return element;
}

export function button(text: string, press: (event: Event) => void, properties: Properties = {}): HTMLButtonElement {
  return h("button", { type: "button", ...properties, onclick: press }, text);
}

/** Foreign text in which what stands between backticks is code. */
export function prose(text: string): Node[] {
  return clean(text)
    .split("`")
    .map((part, index, all) =>
      index % 2 === 1 && index < all.length - 1 ? h("code", {}, part) : new Text(tied(part)),
    );
}

/** A button that copies `text`, and says so. */
export function copyButton(text: string, label: string, announce: (text: string) => void): HTMLButtonElement {
  const made = button("Copy", () => void copy(), { class: "copy", "aria-label": label });
  async function copy() {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      done = copiedBySelection(text);
    }
    made.textContent = done ? "Copied" : "Not copied";
    announce(done ? "Copied" : "The browser did not allow copying");
    setTimeout(() => (made.textContent = "Copy"), 1500);
  }
  return made;
}

/** The way for pages from files, where the clipboard is closed to scripts in some browsers. */
function copiedBySelection(text: string): boolean {
  const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

/** A choice of one among few, as radio buttons that look like one control. */
export function choice<T extends string>(
  legend: string,
  options: readonly { value: T; text: string }[],
  chosen: T,
  choose: (value: T) => void,
): { element: HTMLElement; select(value: T): void } {
  const name = `choice-${nextId()}`;
  const inputs = options.map(({ value }) =>
    h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }),
  );
  const element = h(
    "fieldset",
    { class: "choice" },
    h("legend", {}, legend),
    ...options.map(({ text }, index) => h("label", {}, inputs[index], h("span", {}, text))),
  );
  return {
    element,
    select(value) {
      for (const input of inputs) input.checked = input.value === value;
    },
  };
}

export function check(text: string, checked: boolean, change: (checked: boolean) => void): HTMLElement {
  const input = h("input", { type: "checkbox", checked, onchange: () => change(input.checked) });
  return h("label", { class: "check" }, input, text);
}

let lastId = 0;

/** An id that no other element of the page has. */
export function nextId(): string {
  lastId += 1;
  return `g${lastId}`;
}
