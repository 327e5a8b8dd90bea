/** How each class looks: a colour that colour-blind readers can tell apart, a pattern, and its place in a stack. */

export type Pattern = "plain" | "rising" | "falling" | "dots" | "lines" | "bars" | "cross";

export interface Look {
  light: string;
  dark: string;
  pattern: Pattern;
}

const LOOKS: Record<string, Look> = {
  context: { light: "#b4bdc7", dark: "#4c5663", pattern: "falling" },
  parameters: { light: "#2f6db5", dark: "#4a86cf", pattern: "plain" },
  gradients: { light: "#16946f", dark: "#2aa882", pattern: "rising" },
  optimizer_state: { light: "#6fb7e3", dark: "#7dc0ea", pattern: "dots" },
  activations: { light: "#e8a33b", dark: "#e0a04a", pattern: "plain" },
  inputs: { light: "#c77bab", dark: "#cd86b3", pattern: "falling" },
  temporaries: { light: "#e9dd66", dark: "#d9cf62", pattern: "lines" },
  communication: { light: "#7e5bc2", dark: "#9a7add", pattern: "cross" },
  cache: { light: "#cf5a24", dark: "#dd6e3c", pattern: "plain" },
  workspace: { light: "#93755a", dark: "#a98a6d", pattern: "bars" },
  unknown: { light: "#8a94a0", dark: "#7f8a97", pattern: "plain" },
  rounding: { light: "#c3cad3", dark: "#545e6b", pattern: "cross" },
};

const OTHER: Look = { light: "#8a94a0", dark: "#7f8a97", pattern: "dots" };

/** From the bottom of a stack to its top: what lives long carries what comes and goes. */
const ORDER = [
  "context",
  "parameters",
  "gradients",
  "optimizer_state",
  "cache",
  "activations",
  "inputs",
  "temporaries",
  "communication",
  "workspace",
  "unknown",
  "rounding",
];

export function look(name: string): Look {
  return LOOKS[name] ?? OTHER;
}

/** The indices of the classes in the order in which they are stacked. Names of later versions go to the top. */
export function stackOrder(classes: { name: string }[]): number[] {
  const rank = (index: number) => {
    const at = ORDER.indexOf(classes[index].name);
    return at < 0 ? ORDER.length : at;
  };
  return classes.map((_, index) => index).sort((a, b) => rank(a) - rank(b) || a - b);
}
