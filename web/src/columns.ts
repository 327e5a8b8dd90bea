/** Columns of the data as typed arrays. */

/** Running sums of a `_delta` column. */
export function summed(delta: readonly number[]): Float64Array {
  const sums = new Float64Array(delta.length);
  let sum = 0;
  for (let index = 0; index < delta.length; index++) {
    sum += delta[index];
    sums[index] = sum;
  }
  return sums;
}

/** The first index whose value is greater than `value`, in a column that never falls. */
export function after(column: ArrayLike<number>, value: number, length = column.length): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (column[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The first index whose value is at least `value`, in a column that never falls. */
export function from(column: ArrayLike<number>, value: number, length = column.length): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (column[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The index of the value nearest to `value`, in a column that never falls; -1 if it is empty. */
export function nearest(column: ArrayLike<number>, value: number): number {
  const right = from(column, value);
  if (right === column.length) return column.length - 1;
  if (right === 0) return 0;
  return value - column[right - 1] <= column[right] - value ? right - 1 : right;
}
