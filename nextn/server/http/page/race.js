// Tokens over time of the panes, as a small plot.

import { draw } from "./svg.js";

const LEFT = 40, RIGHT = 512, TOP = 8, BOTTOM = 145;

/** `panes`: [pane, class of its line] pairs. */
export function plot(svg, panes) {
  const points = panes.flatMap(([pane]) => pane.timing.arrivals);
  const last = Math.max(...points.map(([at]) => at));
  const most = Math.max(...points.map(([, tokens]) => tokens));
  const x = (at) => LEFT + ((RIGHT - LEFT) * at) / last;
  const y = (tokens) => BOTTOM - ((BOTTOM - TOP) * tokens) / most;
  svg.replaceChildren(
    draw("line", { class: "axis", x1: LEFT, y1: BOTTOM, x2: RIGHT, y2: BOTTOM }),
    draw("line", { class: "axis", x1: LEFT, y1: TOP, x2: LEFT, y2: BOTTOM }),
    text(LEFT - 6, TOP + 8, "end", String(most)),
    text(LEFT - 6, BOTTOM, "end", "0"),
    text(LEFT, BOTTOM + 17, "start", "0 s"),
    text(RIGHT, BOTTOM + 17, "end", `${last.toFixed(2)} s`),
    ...panes.map(([pane, name]) =>
      draw("polyline", { class: name, points: [[0, 0], ...pane.timing.arrivals].map(([at, n]) => `${x(at)},${y(n)}`).join(" ") })),
    text(RIGHT, BOTTOM - 8, "end", "solid: with drafts, dashed: without"),
  );
}

function text(x, y, anchor, content) {
  const element = draw("text", { x, y, "text-anchor": anchor });
  element.textContent = content;
  return element;
}
