/** What the server says about recordings: `gpuheap.recordings/1`, `gpuheap.skew/1`, `gpuheap.diff/1`. */

import type { Confidence, Place, Verdict } from "../report.js";

export interface List {
  folder: string | null;
  recordings: Recording[];
}

/** One device of a recording. What is known of its memory is there once it was read, and stays. */
export interface Recording {
  id: number;
  /** Its path in the folder. */
  name: string;
  /** Of the file. */
  bytes: number;
  state: "reading" | "ready" | "failed";
  percent: number | null;
  error: string | null;
  hint: string | null;
  rank: number | null;
  device?: number;
  devices?: number;
  events?: number;
  complete?: boolean;
  verdict?: { kind: Verdict["kind"]; headline: string; confidence: Confidence };
  verdict_title?: string;
  peaks?: Peaks;
  steps?: number;
  step_unit?: string;
  growth_bytes_per_step?: number;
}

export interface Peaks {
  allocated_bytes: number;
  reserved_bytes: number;
}

export interface SkewList {
  runs: Run[];
}

/** Recordings that differ by rank alone. */
export interface Run {
  name: string;
  ranks: { rank: number; recording: string }[];
  measures: Measure[];
  sentences: string[];
}

export interface Measure {
  title: string;
  unit: "bytes" | "bytes_per_step" | "count";
  class: string | null;
  /** One a rank. */
  values: number[];
  outliers: (string | null)[];
  min: number;
  median: number;
  max: number;
}

export interface Diff {
  before: Side;
  after: Side;
  classes: { class: string; before_bytes: number; after_bytes: number; change_bytes: number }[];
  sites: SiteChange[];
  growth: SiteChange[];
}

export interface Side {
  source: { path: string; device: number; devices: number };
  verdict: { kind: Verdict["kind"]; headline: string };
  peaks: Peaks;
  steps: number;
}

export interface SiteChange {
  before_site: Place | null;
  after_site: Place | null;
  label: string;
  class: string;
  before_bytes: number;
  after_bytes: number;
  change_bytes: number;
}

/** Asks the server. What goes wrong is an error that a person can read. */
export async function ask<T>(path: string): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(path);
  } catch {
    throw new Error("The server does not answer: start `gpuheap serve` again and reload");
  }
  const data: unknown = await answer.json().catch(() => null);
  if (answer.ok && data !== null) return data as T;
  const { error, hint } = (data ?? {}) as { error?: string; hint?: string };
  throw new Error([error ?? `The server refused (${answer.status})`, hint].filter(Boolean).join(": "));
}
