// A run's tokens over time, by the engine's clock, and the median of several runs.

export class Timing {
  constructor() {
    this.arrivals = []; // [seconds since the request reached the engine, tokens by then]
    this.tokens = 0;
  }

  /** Takes in an entry of draft_steps. */
  take({ seconds, tokens }) {
    this.tokens += tokens;
    this.arrivals.push([seconds, this.tokens]);
  }

  /** Milliseconds to the first token. */
  get first() {
    return 1000 * (this.arrivals[0]?.[0] ?? NaN);
  }

  /** Tokens per second after the first output; NaN for a single step. */
  get speed() {
    const [start, before] = this.arrivals[0] ?? [];
    const [end] = this.arrivals.at(-1) ?? [];
    return end > start ? (this.tokens - before) / (end - start) : NaN;
  }
}

/** The run of median speed. */
export const median = (runs) => runs.toSorted((a, b) => a.speed - b.speed)[Math.floor(runs.length / 2)];
