/** Figures as text: the same words and digits as the other forms of a report. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** An amount of memory with three digits, as `gpuheap_record::Bytes` writes it. */
export function bytes(amount: number): string {
  let unit = 0;
  let rest = Math.max(0, Number.isFinite(amount) ? amount : 0);
  // 1023.5 would round up to "1024" of the smaller unit: move on a little before.
  while (rest >= 1023.5 && unit + 1 < UNITS.length) {
    rest /= 1024;
    unit += 1;
  }
  return `${rounded(rest, unit === 0 || rest >= 99.95 ? 0 : rest >= 9.995 ? 1 : 2)} ${UNITS[unit]}`;
}

/** A difference between two amounts, with its sign. */
export function change(amount: number): string {
  if (amount === 0) return "no change";
  return (amount > 0 ? "+" : "\u2212") + bytes(Math.abs(amount));
}

/** `toFixed`, but a tie goes to the even digit: so does the rest of the program. */
function rounded(amount: number, digits: number): string {
  const text = amount.toFixed(digits);
  const twice = amount * 10 ** digits * 2;
  if (!Number.isInteger(twice) || twice % 2 === 0) return text;
  // All digits of the number: only if they end in a five is it a tie.
  const exact = amount.toFixed(60);
  const at = exact.indexOf(".") + digits;
  if (!/^50*$/.test(exact.slice(at + 1))) return text;
  const down = digits === 0 ? exact.slice(0, at) : exact.slice(0, at + 1);
  return Number(down.at(-1)) % 2 === 0 ? down : text;
}

/** `part` of `whole` in whole percent; what is not nothing and not all never looks as if it were. */
export function share(part: number, whole: number): string {
  const percent = whole > 0 ? (part / whole) * 100 : 0;
  if (part > 0 && percent < 1) return "<1 %";
  if (part < whole && percent > 99) return ">99 %";
  return `${rounded(percent, 0)} %`;
}

/** A number with a comma between thousands. */
export function count(number: number): string {
  return Math.round(number)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ",");
}

/** `1 event`, `428 events`. */
export function counted(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A time span in the unit that suits it. */
export function duration(microseconds: number): string {
  const seconds = microseconds / 1e6;
  const whole = Math.floor(seconds);
  if (microseconds < 1e3) return `${Math.round(microseconds)} µs`;
  if (microseconds < 1e6) return `${three(microseconds / 1e3)} ms`;
  if (microseconds < 6e7) return `${three(seconds)} s`;
  if (microseconds < 3.6e9) return `${count(Math.floor(whole / 60))} min ${two(whole % 60)} s`;
  return `${count(Math.floor(whole / 3600))} h ${two(Math.floor(whole / 60) % 60)} min`;
}

/** Times along an axis: all in the unit of the largest, with as many digits as their distance needs. */
export function axisTimes(splits: readonly number[]): string[] {
  const most = Math.max(...splits.map(Math.abs), 0);
  const [unit, size] = most >= 1e6 ? ["s", 1e6] : most >= 1e3 ? ["ms", 1e3] : ["µs", 1];
  const step = splits.length > 1 ? (splits[1] - splits[0]) / size : 1;
  const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  return splits.map((at) =>
    Number.isFinite(step) && step > 0 ? `${(at / size).toFixed(digits)} ${unit}` : duration(at),
  );
}

function three(number: number): string {
  return rounded(number, number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2);
}

function two(number: number): string {
  return number.toString().padStart(2, "0");
}

/** An address as the driver writes it. Addresses beyond 2^53 have lost their last digits before they came here. */
export function hex(address: number): string {
  return Number.isSafeInteger(address) ? `0x${address.toString(16)}` : `0x${BigInt(Math.trunc(address)).toString(16)}`;
}

/** An address as a person types it: `0x7f…` or plain digits; hex digits without `0x` are taken for what they are. */
export function address(text: string): number | null {
  const plain = text.trim().replace(/[_,\s]/g, "");
  if (/^0x[0-9a-f]+$/i.test(plain)) return Number.parseInt(plain, 16);
  if (/^\d+$/.test(plain)) return Number(plain);
  if (/^[0-9a-f]+$/i.test(plain)) return Number.parseInt(plain, 16);
  return null;
}

/** The line of a shell that sets `conf`, ready to be copied. */
export function confLine(conf: string): string {
  const plain = clean(conf);
  if (plain === "") return "unset PYTORCH_CUDA_ALLOC_CONF";
  if (/^[A-Za-z0-9_:,.\-+/=]+$/.test(plain)) return `export PYTORCH_CUDA_ALLOC_CONF=${plain}`;
  return `export PYTORCH_CUDA_ALLOC_CONF='${plain.replaceAll("'", "'\\''")}'`;
}

/** The settings of an allocator in words. */
export function settings(conf: string): string {
  return conf === "" ? "stock settings" : clean(conf);
}

/** Text longer than this is cut: nobody reads on, and browsers stall on it. */
const LONGEST = 2000;

// Control, direction and invisible characters: they could reorder a line or hide text.
const UNSAFE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** Foreign text made harmless and bounded. It still must only ever become text, never markup. */
export function clean(text: string, longest = LONGEST): string {
  const cut = text.length > longest ? `${text.slice(0, longest)}…` : text;
  return cut.replace(UNSAFE, (found) =>
    /[\t\n\r]/.test(found) ? " " : /[\u200d\ufe00-\ufe0f]/.test(found) ? "" : "\ufffd",
  );
}

/** The last part of a path. */
export function baseName(path: string): string {
  return path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
}

/** `train.py:16 in step`; the whole path if asked for. */
export function place(at: { file: string; line: number; function: string }, full = false): string {
  const file = clean(full ? at.file : baseName(at.file), 300);
  const name = clean(at.function, 300);
  if (file === "") return name;
  return `${file}${at.line > 0 ? `:${at.line}` : ""}${name === "" ? "" : ` in ${name}`}`;
}

export function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
