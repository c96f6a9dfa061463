// One answer: its text, each token coloured by the depth at which it was drafted, and its metrics.

import { number, show } from "./metrics.js";

const COLOURS = 5; // deeper drafts share the last one

export class Pane {
  constructor(title, prompt) {
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.find("h2").textContent = title;
    this.find("pre").setAttribute("aria-label", `Text, ${title}`);
    this.find("pre").setAttribute("aria-busy", "true");
    this.text = "";
    this.tokens = 0;
    this.counts = []; // of tokens, by depth
    this.arrivals = []; // [ms since the request was sent, tokens by then]
    this.waiting = []; // [text, depth, step] not drawn yet
    this.step = 0; // 0: the prompt's
    this.sent = performance.now();
    const given = document.createElement("span");
    given.className = "given";
    given.textContent = prompt;
    this.find("pre").append(given);
    this.draw();
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  /** Takes in a chunk of the stream. Drawn with the next frame: what is timed is the server. */
  push(chunk, now) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices) {
      this.text += choice.text;
      for (const [text, depth] of choice.draft_depths) {
        this.tokens += 1;
        this.counts[depth] = (this.counts[depth] ?? 0) + 1;
        this.waiting.push([text, depth, this.step]);
        if (depth === 0) this.step += 1;
      }
      if (choice.draft_depths.length) this.arrivals.push([now - this.sent, this.tokens]);
    }
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  /** `error`: what ended it before its time, null at its own end. */
  end(error) {
    this.draw();
    this.find("pre").removeAttribute("aria-busy");
    if (error === null) return;
    this.find(".error").textContent = error;
    this.find(".error").hidden = false;
  }

  get first() {
    return this.arrivals[0]?.[0] ?? NaN;
  }

  /** Tokens per second after the first output. */
  get speed() {
    const [start, before] = this.arrivals[0] ?? [];
    const [end] = this.arrivals.at(-1) ?? [];
    return end > start ? (1000 * (this.tokens - before)) / (end - start) : NaN;
  }

  /** So far, from the tokens that ended a step; at the end what the server says, which knows of a cut run. */
  get acceptLength() {
    const said = this.usage?.spec_details?.accept_length;
    if (said) return said;
    const steps = this.step - 1;
    return steps > 0 ? (this.tokens - this.arrivals[0][1]) / steps : NaN;
  }

  draw() {
    this.frame = null;
    const pre = this.find("pre");
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
    const added = document.createDocumentFragment();
    for (const [text, depth, step] of this.waiting) {
      const span = document.createElement("span");
      span.className = `d${Math.min(depth, COLOURS)}`;
      span.textContent = text;
      span.title = step === 0 ? "from the prompt's step" : `step ${step}: ${name(depth)}`;
      added.append(span);
    }
    this.waiting = [];
    pre.append(added);
    if (atEnd) pre.scrollTop = pre.scrollHeight;
    show(this.find(".metrics"), [
      ["tokens/s", number(this.speed, 1)],
      ["accept length", number(this.acceptLength, 2)],
      ["TTFT, ms", number(this.first, 1)],
      ["tokens", number(this.tokens)],
      ["prompt tokens", number(this.usage?.prompt_tokens)],
      ["of them cached", number(this.usage?.prompt_tokens_details.cached_tokens)],
    ]);
    this.drawMix();
  }

  drawMix() {
    const mix = this.find(".mix");
    const legend = this.find(".legend");
    for (let depth = mix.children.length; depth < this.counts.length; depth += 1) {
      const part = document.createElement("i");
      const entry = document.createElement("li");
      const sample = document.createElement("span");
      part.className = sample.className = `d${Math.min(depth, COLOURS)}`;
      sample.textContent = name(depth);
      entry.append(sample, document.createTextNode(""));
      mix.append(part);
      legend.append(entry);
    }
    [...mix.children].forEach((part, depth) => {
      const count = this.counts[depth] ?? 0;
      part.style.width = `${(100 * count) / Math.max(this.tokens, 1)}%`;
      legend.children[depth].lastChild.textContent = ` ${number(count)}`;
    });
  }
}

function name(depth) {
  return depth === 0 ? "the model's own" : `draft ${depth}, accepted`;
}
