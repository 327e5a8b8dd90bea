/** The report inside the page: `gpuheap.report/1`, as `crates/gpuheap-report/schema/report.schema.json` describes it. */

export interface Report {
  schema: string;
  source: Origin;
  verdict: Verdict;
  peaks: { allocated_bytes: number; requested_bytes: number; active_bytes: number; reserved_bytes: number };
  peak: Moment;
  peak_reserved: Moment;
  oom: OutOfMemory | null;
  end: Moment;
  ledger_at: "peak" | "peak-reserved" | "oom" | "end";
  ledger: LedgerPart[];
  ledgers: Partial<Record<"peak" | "peak_reserved" | "oom" | "end", LedgerPart[]>>;
  holders: Holder[];
  steps: { count: number; how: "annotation" | "optimizer_frames" | "period" | "none"; unit: string };
  findings: Finding[];
  replay: {
    policy: string;
    conf: string;
    exact: boolean;
    segment_events: number;
    matched: number;
    first_mismatch: string | null;
  };
  whatif: WhatIfRow[];
  classes: { class: string; rule: string; bytes: number; blocks: number }[];
}

export type Confidence = "low" | "medium" | "high";

export interface Place {
  file: string;
  line: number;
  function: string;
}

export interface Origin {
  path: string;
  format: string;
  bytes: number;
  events: number;
  devices: number;
  device: number;
  device_events: number;
  complete: boolean;
  reserved_before: number;
  duration_us: number;
  conf: string;
  /** What else the recording says of the program and its machine. */
  facts?: Record<string, string>;
  notes: string[];
}

export interface Verdict {
  kind: "healthy" | "leak" | "sawtooth" | "fragmentation" | "stranded" | "oom";
  headline: string;
  site: Place | null;
  remedy: string;
  confidence: Confidence;
}

export interface Moment {
  event: number | null;
  time_us: number | null;
  allocated_bytes: number;
  reserved_bytes: number;
  by_class: Record<string, number>;
}

export interface OutOfMemory extends Moment {
  count: number;
  asked_bytes: number;
  cached_bytes: number;
  largest_free_bytes: number;
  pending_bytes: number;
  device_free_bytes: number;
  ideal_bytes: number;
  limit_at_least_bytes: number;
  limit_below_bytes: number | null;
  site: Place | null;
  holders: Holder[];
}

export interface LedgerPart {
  part: string;
  kind: "class" | "rounding" | "pending" | "private_pool" | "free" | "stranded" | "outside";
  class: string | null;
  bytes: number;
  detail: string;
}

export interface Holder {
  site: Place | null;
  class: string;
  bytes: number;
  blocks: number;
  label: string;
}

export interface Finding {
  id: string;
  kind: string;
  title: string;
  site: Place | null;
  stack: Place[];
  bytes: number;
  bytes_per_step: number | null;
  confidence: Confidence;
  evidence: string[];
  remedy: { text: string; conf?: string; saves_bytes?: number };
  growth: number[];
  /** The event after which it shows best, where there is one. */
  event?: number | null;
}

export interface WhatIfRow {
  conf: string;
  role: "recorded" | "given" | "tried" | "found";
  limit_bytes: number | null;
  peak_allocated_bytes: number;
  peak_active_bytes: number;
  peak_reserved_bytes: number;
  segments: number;
  driver_calls: number;
  retries: number;
  oom: boolean;
  exact: boolean;
}
