/** A value that tells those who asked when it changes. */
export class Signal<T> {
  readonly #listeners = new Set<(value: T) => void>();
  #value: T;

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const listener of this.#listeners) listener(value);
  }

  /** Calls `listener` at every change from now on. */
  on(listener: (value: T) => void): void {
    this.#listeners.add(listener);
  }
}
