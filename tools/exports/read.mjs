// What Perfetto's trace processor and pprof's library read in exports: node read.mjs ANSWER.json FILE...
// The answer has one object a file: figures for check.py to compare.
import { readFileSync, writeFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { Profile } from "pprof-format";
import { withTrace } from "./trace_processor.mjs";

const [answer, ...files] = process.argv.slice(2);
// The trace processor's decoder warns of what it does not know of its own messages.
console.warn = () => {};

const figures = [];
for (const file of files) {
  figures.push(file.endsWith(".pb.gz") ? profile(file) : await withTrace(file, trace));
}
// Addresses go beyond what a number of JSON holds exactly in JavaScript.
writeFileSync(answer, JSON.stringify(figures, (_, value) => (typeof value === "bigint" ? String(value) : value)));
process.exit(0);

async function trace(query) {
  const peak = "(SELECT min(ts) FROM slice WHERE name = 'peak of allocated memory')";
  return {
    errors: await query("SELECT name, value FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')"),
    counters: await query(`
      SELECT track.name AS name, track.unit AS unit, max(value) AS most, count(*) AS count,
        (SELECT value FROM counter AS at WHERE at.track_id = track.id AND at.ts <= ${peak}
          ORDER BY at.ts DESC, at.id DESC LIMIT 1) AS at_peak
      FROM counter JOIN counter_track AS track ON counter.track_id = track.id GROUP BY track.id`),
    // Slices that end before they begin, stand in others, or overlap their neighbours.
    wrong: await query(`
      SELECT count(*) AS count FROM (SELECT ts, dur, depth, lead(ts) OVER (PARTITION BY track_id ORDER BY ts, id) AS next
        FROM slice WHERE EXTRACT_ARG(arg_set_id, 'debug.id') IS NOT NULL OR EXTRACT_ARG(arg_set_id, 'args.id') IS NOT NULL)
      WHERE dur < 0 OR depth > 0 OR next < ts + dur`),
    blocks: await query(`
      SELECT name, ts, dur, coalesce(EXTRACT_ARG(arg_set_id, 'debug.id'), EXTRACT_ARG(arg_set_id, 'args.id')) AS id,
        coalesce(EXTRACT_ARG(arg_set_id, 'debug.size_bytes'), EXTRACT_ARG(arg_set_id, 'args.size_bytes')) AS size_bytes,
        coalesce(EXTRACT_ARG(arg_set_id, 'debug.stack'), EXTRACT_ARG(arg_set_id, 'args.stack')) AS stack
      FROM slice WHERE id IS NOT NULL
        AND coalesce(EXTRACT_ARG(arg_set_id, 'debug.size_bytes'), EXTRACT_ARG(arg_set_id, 'args.size_bytes')) IS NOT NULL`),
    instants: await query(`
      SELECT name, category, ts FROM slice WHERE category IN ('moments', 'findings', 'steps') ORDER BY ts, id`),
    tracks: await query("SELECT name, count(*) AS count FROM track GROUP BY name"),
  };
}

function profile(file) {
  const bytes = gunzipSync(readFileSync(file));
  const read = Profile.decode(bytes);
  const text = (row) => read.stringTable.strings[Number(row)];
  const locations = new Map(read.location.map((location) => [Number(location.id), location]));
  const functions = new Map(read.function.map((entry) => [Number(entry.id), entry]));
  const sums = {};
  const classes = {};
  let frames = 0;
  read.sampleType.forEach((type, column) => {
    sums[`${text(type.type)} ${text(type.unit)}`] = read.sample.reduce((sum, sample) => sum + BigInt(sample.value[column]), 0n);
  });
  const held = read.sampleType.findIndex((type) => text(type.type) === "inuse_space");
  for (const sample of read.sample) {
    const label = sample.label.find((label) => text(label.key) === "class");
    classes[text(label.str)] = (classes[text(label.str)] ?? 0n) + BigInt(sample.value[held]);
    for (const id of sample.locationId) {
      const line = locations.get(Number(id)).line[0];
      if (text(functions.get(Number(line.functionId)).name) === undefined) throw new Error("a function without a name");
      frames += 1;
    }
  }
  // What the library writes of what it read is as long: it knew every field.
  const again = read.encode();
  return { default: text(read.defaultSampleType), sums, classes, frames, samples: read.sample.length,
    time_nanos: read.timeNanos, bytes: bytes.length, again: again.length };
}
