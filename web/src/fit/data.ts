/** The data of the page of a plan, as `gpuheap-report` writes it: `gpuheap.fit.page/1`. Bytes and microseconds. */

export const SCHEMA = "gpuheap.fit.page/1";

export interface Holder {
  class: string;
  module: string;
  bytes: number;
}

export interface Peak {
  allocated_bytes: number;
  reserved_bytes: number;
  device_bytes: number;
  low: number;
  high: number;
  phase: string;
  step: number;
  module: string;
  event: number;
  holders: Holder[];
  step_us: number;
}

export interface PlannedLever {
  lever: string;
  /** Micro-batches a step, of accumulation. */
  factor?: number;
  saves_bytes: number;
  costs_us: number;
  what: string;
  why: string;
  code: string;
}

export interface FrontPoint {
  budget_bytes: number;
  step_us: number;
}

export interface PhaseSpan {
  step: number;
  phase: string;
  start: number;
  end: number;
  start_us: number;
  end_us: number;
  allocated_bytes: number;
  reserved_bytes: number;
  event: number;
  module: string;
  holders: Holder[];
}

/** Columns with a value for each point; what is there at a point stays until the next one. */
export interface Timeline {
  events: number;
  at: number[];
  us: number[];
  classes: string[];
  bytes: number[][];
  reserved: number[];
  module: (number | null)[];
  modules: string[];
  phases: PhaseSpan[];
  peak: number;
}

export interface Fit {
  source: { make: string; torch: string; python: string; how: string; notes: string[] };
  batch: { size: number };
  device: string;
  gpus: number;
  verdict: "fits" | "fits_with_spill" | "does_not_fit";
  budget_bytes: number;
  context_bytes: number;
  conf: string;
  baseline: Peak;
  peak: Peak;
  phases: { step: number; phase: string; allocated_bytes: number; reserved_bytes: number }[];
  plan: PlannedLever[];
  step_us: number;
  smallest_budget_bytes: number | null;
  front: FrontPoint[];
  unknown: { what: string; where: string; bound_bytes: number | null }[];
  notes: string[];
  timelines?: { baseline: Timeline; planned: Timeline | null };
}

export interface FitPage {
  schema: string;
  generator: string;
  fit: Fit;
  /** The changed lines of the program, and the line that starts it; null where there is no program to change. */
  changes: { diff: string; start: string } | null;
  headline: string;
  optimality: string | null;
  smallest: string | null;
  /** The changes of each point of the front, in words. */
  titles: string[];
}

/** What the classes of a trace are called here: by the names that `classes.ts` has colours for, with their titles. */
const CLASSES: Record<string, [name: string, title: string]> = {
  parameter: ["parameters", "parameters"],
  buffer: ["parameters", "parameters"],
  gradient: ["gradients", "gradients"],
  optimizer: ["optimizer_state", "optimizer state"],
  activation: ["activations", "activations"],
  loss: ["activations", "activations"],
  input: ["inputs", "inputs"],
  temporary: ["temporaries", "temporaries"],
  workspace: ["workspace", "library workspace"],
};

export function classOf(name: string): { name: string; title: string } {
  const [known, title] = CLASSES[name] ?? ["unknown", "unknown"];
  return { name: known, title };
}

/** `zero grad of step 2`. */
export function phaseText({ phase, step }: { phase: string; step: number }): string {
  const name = phase.replaceAll("_", " ");
  return step > 0 ? `${name} of step ${step}` : name;
}

/** A change of time against all of it, in the words of the terminal. */
export function percent(more: number, of: number): string {
  const part = of > 0 ? (more / of) * 100 : 0;
  if (Math.abs(part) < 0.5) return "±0 %";
  return `${part > 0 ? "+" : "\u2212"}${Math.abs(part).toFixed(0)} %`;
}
