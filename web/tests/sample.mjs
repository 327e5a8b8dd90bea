// A small page by hand, whose sums can be seen.
//
// Tick:      0    1    2    3    4    5    6
// Segment A  ----------------------------->   1024 bytes at 0x1000, there from the start
// Segment B            ------------->         512 bytes at 0x1400, expandable, from 2 to 5
// Block 0         --------------------->      100 of 128 bytes at 0x1000: parameters, never freed
// Block 1              -----                  256 of 256 bytes at 0x1100: activations, freed at 3, waits until 5
// Block 2                   ---------         500 of 512 bytes at 0x1400: activations, freed at 5

export function deltas(values) {
  return values.map((value, index) => value - (values[index - 1] ?? 0));
}

const place = (file, line, name) => ({ file, line, function: name });

/** Frames: 0 `main` (own), 1 `forward` (own), 2 `linear` (a library's), 3 `relu` (a library's). */
export function page(change = {}) {
  const classes = [
    { name: "parameters", title: "parameters" },
    { name: "activations", title: "activations" },
    { name: "rounding", title: "rounding" },
  ];
  const moment = (event, allocated, reserved) => ({
    event,
    time_us: 1000 + event * 10,
    allocated_bytes: allocated,
    reserved_bytes: reserved,
    by_class: {},
  });
  return {
    schema: "gpuheap.page/1",
    generator: "gpuheap 0.0.0",
    report: {
      schema: "gpuheap.report/1",
      source: {
        path: "runs/sample.pickle",
        format: "torch-snapshot-pickle",
        bytes: 2048,
        events: 6,
        devices: 1,
        device: 0,
        device_events: 6,
        complete: true,
        reserved_before: 1024,
        duration_us: 60,
        conf: "",
        notes: [],
      },
      verdict: {
        kind: "healthy",
        headline: "Healthy: nothing is wrong",
        site: null,
        remedy: "",
        confidence: "high",
      },
      peaks: { allocated_bytes: 640, requested_bytes: 600, active_bytes: 896, reserved_bytes: 1536 },
      peak: moment(2, 640, 1536),
      peak_reserved: moment(2, 640, 1536),
      oom: null,
      end: moment(5, 128, 1024),
      ledger_at: "peak",
      ledger: [],
      ledgers: {},
      holders: [],
      steps: { count: 2, how: "annotation", unit: "optimizer step" },
      findings: [],
      replay: { policy: "torch", conf: "", exact: true, segment_events: 2, matched: 2, first_mismatch: null },
      whatif: [],
      classes: [],
    },
    classes,
    rules: [
      { class: 0, text: "made by a module" },
      { class: 1, text: "made in a forward pass" },
    ],
    places: {
      strings: ["", "main", "forward", "linear", "relu", "train.py", "torch/nn.py"],
      frames: { function: [1, 2, 3, 4], file: [5, 5, 6, 6], line: [10, 20, 30, 40], kind: [1, 1, 0, 0] },
      // 0 root, 1 main, 2 main > forward, 3 main > linear, 4 main > linear > forward, 5 main > forward > relu, 6 linear
      tree: { caller: [0, 0, 1, 1, 3, 2, 0], frame: [-1, 0, 1, 2, 1, 3, 2], site: [-1, 0, 1, 0, 1, 1, -1] },
    },
    lanes: [{ pool: "default", stream: "default stream", kind: "small" }],
    sites: [place("train.py", 10, "main"), place("train.py", 20, "forward")].map((at, index) => ({
      ...at,
      label: "",
      class: index,
      at: [index === 0 ? 128 : 512, index === 0 ? 128 : 0],
      most: 512,
      most_tick: 3,
      count: 1 + index,
      total: 640,
      lifetime_us: null,
      lifetime_events: 2,
      kept: 1 - index,
      growth: null,
    })),
    steps: { ticks_delta: deltas([3, 6]) },
    moments: [
      { name: "peak", tick: 3 },
      { name: "end", tick: 6 },
    ],
    start_us: 1000,
    timeline: {
      ticks_delta: deltas([0, 1, 2, 3, 5, 6]),
      time_delta: deltas([0, 10, 20, 30, 50, 60]),
      reserved_delta: deltas([1024, 1024, 1536, 1536, 1024, 1024]),
      classes_delta: [
        deltas([0, 100, 100, 100, 100, 100]),
        deltas([0, 0, 256, 500, 0, 0]),
        deltas([0, 28, 28, 40, 28, 28]),
      ],
    },
    memory: {
      complete: true,
      of_blocks: 3,
      of_segments: 2,
      exact_ticks: [],
      blocks: {
        born_delta: deltas([1, 2, 3]),
        life: [-1, 1, 2],
        address_delta: deltas([0x1000, 0x1100, 0x1400]),
        sort: [0, 1, 2],
        pending: [[1, 5]],
      },
      sorts: {
        place: [1, 2, 4],
        rule: [0, 1, 1],
        requested: [100, 256, 500],
        size: [128, 256, 512],
        lane: [0, 0, 0],
      },
      segments: {
        born_delta: deltas([0, 2]),
        life: [-1, 3],
        address_delta: deltas([0x1000, 0x1400]),
        size: [1024, 512],
        lane: [0, 0],
        expandable: [0, 1],
      },
    },
    whatif: [],
    served: null,
    ...change,
  };
}
