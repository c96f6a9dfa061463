// Values of the last minutes as small lines, each with its latest value.

import { draw } from "./svg.js";

const SAMPLES = 180;
const WIDTH = 180, HEIGHT = 40;

export class Spark {
  /** `digits`: of the value that is shown. */
  constructor(name, format) {
    this.format = format;
    this.values = [];
    this.element = document.createElement("figure");
    const caption = document.createElement("figcaption");
    this.value = document.createElement("b");
    caption.append(name, this.value);
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${name} over the last minutes` });
    this.element.append(caption, this.svg);
    this.push(NaN);
  }

  /** NaN: there is no value at this moment, the line has a gap. */
  push(value) {
    this.values = [...this.values, value].slice(-SAMPLES);
    const known = this.values.filter(Number.isFinite);
    const most = Math.max(...known, 1e-9);
    this.value.textContent = known.length ? `${this.format(value)}, at most ${this.format(most)}` : this.format(value);
    const lines = [[]];
    const start = SAMPLES - this.values.length;
    this.values.forEach((v, i) => {
      if (Number.isFinite(v)) lines.at(-1).push(`${start + i},${HEIGHT - 2 - ((HEIGHT - 4) * v) / most}`);
      else if (lines.at(-1).length) lines.push([]);
    });
    // A lone value is a short line.
    const drawn = lines.filter((points) => points.length).map((points) => (points.length > 1 ? points : [...points, points[0].replace(/^[\d.]+/, (x) => Number(x) + 1)]));
    this.svg.replaceChildren(...drawn.map((points) => draw("polyline", { points: points.join(" ") })));
  }
}
