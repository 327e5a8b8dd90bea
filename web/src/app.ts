/** What all views share: the recording, the picked moment, the selected site. */

import { after, from } from "./columns.js";
import type { Model } from "./model.js";
import { Signal } from "./signal.js";
import type { Moment, Source } from "./source.js";
import { readLink, writeLink } from "./link.js";

export class App {
  readonly moment: Signal<Moment>;
  /** Index of the selected site; -1 for none. */
  readonly site = new Signal(-1);
  /** A moment to compare with. */
  readonly pinned = new Signal<Moment | null>(null);
  readonly live: HTMLElement;
  #wanted = 0;

  constructor(
    readonly model: Model,
    readonly source: Source,
    first: Moment,
    live: HTMLElement,
  ) {
    this.moment = new Signal(first);
    this.live = live;
  }

  /** Tells those who cannot see. */
  announce = (text: string): void => {
    this.live.textContent = text;
  };

  /** Makes `tick`, or the nearest moment that can be shown, the moment of every view. */
  async pick(tick: number): Promise<void> {
    const snapped = this.source.snap(tick);
    if (snapped === this.moment.value.tick) {
      this.#remember(snapped);
      return;
    }
    // Of several requests under way only the last one counts.
    const mine = ++this.#wanted;
    try {
      const moment = await this.source.moment(snapped);
      if (mine !== this.#wanted) return;
      this.moment.set(moment);
      this.#remember(moment.tick);
    } catch (error) {
      this.announce(error instanceof Error ? error.message : String(error));
    }
  }

  /** Goes from step to step: to the end of the next one, or of the one before. */
  step(direction: 1 | -1): void {
    const { steps } = this.model;
    const { tick } = this.moment.value;
    const at = direction > 0 ? after(steps, tick) : from(steps, tick) - 1;
    if (at >= 0 && at < steps.length) void this.pick(steps[at]);
  }

  #remember(tick: number): void {
    const { target } = readLink(location.hash);
    history.replaceState(null, "", writeLink({ target, tick }) || "#");
  }
}
