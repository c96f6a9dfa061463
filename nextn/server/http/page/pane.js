// One answer: its text, each token coloured by the depth at which it was drafted, and its metrics.

import { number, show } from "./metrics.js";
import { Timing, median } from "./timing.js";
import { draftsOf, drawStep, kind, named } from "./tokens.js";

export class Pane {
  constructor(title, prompt) {
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.find("h2").textContent = title;
    this.find("pre").setAttribute("aria-label", `Text, ${title}`);
    this.find("pre").setAttribute("aria-busy", "true");
    this.prompt = prompt;
    this.text = "";
    this.steps = []; // {number, tokens, drafts, tree}; number 0 is the prompt's
    this.runs = [new Timing()]; // the first is of the text that is shown
    this.committed = []; // tokens, by depth
    this.proposed = []; // drafts, by depth
    this.drawn = 0; // steps
    const given = document.createElement("span");
    given.className = "given";
    given.textContent = prompt;
    this.find("pre").append(given);
    this.draw();
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  /** Takes in a chunk of the stream, or a whole answer. Drawn with the next frame. */
  push(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices) {
      this.text += choice.text;
      const pieces = [...choice.draft_depths];
      for (const step of choice.draft_steps) this.take(step, pieces.splice(0, step.tokens));
      // Text that was held back until the end belongs to no further token.
      if (pieces.length) this.find("pre").append(pieces.map(([text]) => text).join(""));
    }
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  take(step, tokens) {
    const drafts = draftsOf(step);
    this.steps.push({ number: this.steps.length, tokens, drafts, tree: step.parents !== undefined });
    for (const [, depth] of tokens) this.committed[depth] = (this.committed[depth] ?? 0) + 1;
    for (const { depth } of drafts) this.proposed[depth] = (this.proposed[depth] ?? 0) + 1;
    this.runs[0].take({ ...step, tokens: tokens.length });
  }

  /** Times of another run of the same request. */
  again(timing) {
    this.runs.push(timing);
    this.draw();
  }

  /** `error`: what ended it before its time, null at its own end. */
  end(error) {
    this.draw();
    this.find("pre").removeAttribute("aria-busy");
    if (error === null) return;
    this.find(".error").textContent = error;
    this.find(".error").hidden = false;
  }

  get tokens() {
    return this.runs[0].tokens;
  }

  get timing() {
    return median(this.runs);
  }

  /** So far, from the steps after the prompt's; at the end what the server says. */
  get acceptLength() {
    const said = this.usage?.spec_details?.accept_length;
    if (said) return said;
    const steps = this.steps.length - 1;
    return steps > 0 ? (this.tokens - this.steps[0].tokens.length) / steps : NaN;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    const pre = this.find("pre");
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
    pre.append(...this.steps.slice(this.drawn).map(drawStep));
    const begun = this.drawn > 0;
    this.drawn = this.steps.length;
    if (atEnd && begun) pre.scrollTop = pre.scrollHeight;
    show(this.find(".metrics"), [
      ["tokens/s", number(this.timing.speed, 1)],
      ["accept length", number(this.acceptLength, 2)],
      ["TTFT, ms", number(this.timing.first, 1)],
      ["tokens", number(this.tokens)],
      ["steps", number(this.steps.length)],
    ]);
    this.drawLegend();
  }

  drawLegend() {
    const legend = this.find(".legend");
    const depths = Math.max(this.committed.length, this.proposed.length);
    for (let depth = legend.children.length; depth < depths; depth += 1) {
      const entry = document.createElement("li");
      const sample = document.createElement("span");
      sample.className = kind(depth);
      sample.textContent = named(depth);
      entry.append(sample, document.createTextNode(""));
      legend.append(entry);
    }
    [...legend.children].forEach((entry, depth) => {
      const held = number(this.committed[depth] ?? 0);
      entry.lastChild.textContent = depth ? ` ${held} of ${number(this.proposed[depth] ?? 0)} accepted` : ` ${held}`;
    });
  }
}
