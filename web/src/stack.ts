/** Stacking areas: each column becomes what it and those below it hold together. */
export function stacked(columns: readonly Float64Array[], order: readonly number[]): Float64Array[] {
  const length = columns[0]?.length ?? 0;
  let below = new Float64Array(length);
  return order.map((index) => {
    const column = columns[index];
    const sum = new Float64Array(length);
    for (let row = 0; row < length; row++) sum[row] = below[row] + column[row];
    below = sum;
    return sum;
  });
}
