/** Zooming and panning: the part of an axis that is shown. */

export interface Span {
  low: number;
  high: number;
}

/** `span` moved and cut so that it lies within `whole` and is at least `least` long. */
export function within(span: Span, whole: Span, least: number): Span {
  const full = whole.high - whole.low;
  const length = Math.min(full, Math.max(least, span.high - span.low));
  const middle = (span.low + span.high) / 2;
  const low = Math.min(Math.max(whole.low, middle - length / 2), whole.high - length);
  return { low, high: low + length };
}

/** `span` made `factor` times as long, `fixed` staying where it is. */
export function zoomed(span: Span, factor: number, fixed: number): Span {
  const low = fixed - (fixed - span.low) * factor;
  return { low, high: low + (span.high - span.low) * factor };
}

export function panned(span: Span, by: number): Span {
  return { low: span.low + by, high: span.high + by };
}

export function isWhole(span: Span, whole: Span): boolean {
  return span.low <= whole.low && span.high >= whole.high;
}

/** `values` of a sorted column, at most one each `distance`: the first of each group that is too dense. */
export function thinned(values: ArrayLike<number>, distance: number): number[] {
  const kept: number[] = [];
  let last = Number.NEGATIVE_INFINITY;
  for (let index = 0; index < values.length; index++) {
    if (values[index] - last < distance) continue;
    last = values[index];
    kept.push(last);
  }
  return kept;
}
