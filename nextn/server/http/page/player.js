// How a step works, shown with the steps of a text: a slider over root, drafts, verdicts and bonus.

import { flat, kind, named } from "./tokens.js";

const at = (id) => document.getElementById(id);
const PHASES = ["root", "drafts", "verdicts", "bonus"];
const PACE = 1800; // ms a phase, while it plays
const SHOWN = 400; // characters of the text so far

let frames = []; // {step, phase, before, root}
let timer = 0;

/** Takes the steps of a pane; without any drafts there is nothing to tell. */
export function tell(pane) {
  pause();
  frames = [];
  let text = pane.prompt;
  let root = null;
  for (const step of pane.steps) {
    if (root !== null) {
      for (const phase of step.drafts.length ? [0, 1, 2, 3] : [0, 3]) frames.push({ step, phase, root, before: text.slice(0, text.length - root.length) });
    }
    text += step.tokens.map(([piece]) => piece).join("");
    root = step.tokens.at(-1)?.[0] ?? root;
  }
  at("player").hidden = !pane.steps.some((step) => step.drafts.length);
  at("position").max = Math.max(0, frames.length - 1);
  at("position").value = 0;
  if (frames.length) draw();
}

function draw() {
  const { step, phase, before, root } = frames[at("position").valueAsNumber];
  [...document.querySelectorAll(".phases li")].forEach((item, i) => {
    if (i === phase) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  });
  at("position").setAttribute("aria-valuetext", `step ${step.number}, ${PHASES[phase]}`);
  const shown = document.createElement("span");
  shown.className = "given";
  shown.textContent = before.slice(-SHOWN);
  at("before").replaceChildren(shown);
  at("scene").replaceChildren(...cards(step, phase, root));
  at("said").textContent = `Step ${step.number}. ${words(step, phase)}`;
  at("back").disabled = at("position").valueAsNumber === 0;
  at("next").disabled = at("position").valueAsNumber === frames.length - 1;
}

function cards(step, phase, root) {
  const made = [card("root", root, "root", "")];
  if (phase >= 1) {
    for (const { text, depth, accepted } of step.drafts) {
      const judged = phase >= 2 ? (accepted ? "✓ accepted" : "✗ rejected") : "";
      made.push(card(named(depth), text, kind(depth), judged, phase >= 2 && !accepted));
    }
  }
  const last = step.tokens.at(-1);
  if (phase === 3 && last?.[1] === 0) made.push(card("bonus", last[0], "bonus", ""));
  return made;
}

function card(name, text, looks, judged, struck = false) {
  const item = document.createElement("li");
  const code = document.createElement("code");
  const framed = looks === "root" || looks === "bonus";
  item.className = framed ? looks : "";
  code.className = framed ? "" : looks;
  const inner = document.createElement(struck ? "del" : "span");
  inner.textContent = flat(text) || "…";
  code.append(inner);
  const label = document.createElement("span");
  label.textContent = name;
  const verdict = document.createElement("span");
  verdict.textContent = judged;
  verdict.className = struck ? "bad" : "good";
  item.append(label, code, verdict);
  return item;
}

const count = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

function verdict(held, all, tree) {
  if (held === all) return "All drafts are the same tokens, so they are accepted.";
  if (tree && held) return `${held} of ${all} are the same tokens, one after the other, and are accepted; the others are rejected.`;
  if (held) return `${held} of ${all} are the same tokens and are accepted; the next is another one, so it and all that build on it are rejected.`;
  return "The first is another token than the model's, so it is rejected, and all that build on it.";
}

function words({ drafts, tokens, tree }, phase) {
  const held = drafts.filter((draft) => draft.accepted).length;
  const last = tokens.at(-1)?.[1] === 0;
  if (phase === 0) return "The root is the last token of the text so far. The model has not yet read it, so it has not yet said what follows.";
  if (phase === 1) return `The MTP layer guesses what follows the root: ${count(drafts.length, "draft")}, ${tree ? "a tree with several guesses for one place" : "each built on the one before"}. A guess costs a small part of a pass of the model.`;
  if (phase === 2) {
    return `The model reads the root and all drafts in one pass. At each place it says which token it chooses itself. ${verdict(held, drafts.length, tree)}`;
  }
  if (!last) return `The text ends here. The step committed ${count(tokens.length, "token")} in one pass of the model.`;
  const saved = tokens.length > 1 ? ` Without drafts these take ${tokens.length} passes.` : " That is as many as without drafts.";
  return `The same pass gave the model's own choice after the last accepted token: the bonus. The step committed ${count(tokens.length, "token")} in one pass of the model.${saved} The bonus is the next root.`;
}

function move(by) {
  const before = at("position").valueAsNumber;
  at("position").value = before + by;
  draw();
  return at("position").valueAsNumber !== before;
}

function pause() {
  clearInterval(timer);
  timer = 0;
  at("play").textContent = "Play";
}

export function controls() {
  at("position").addEventListener("input", () => (pause(), draw()));
  at("back").addEventListener("click", () => (pause(), move(-1)));
  at("next").addEventListener("click", () => (pause(), move(1)));
  at("play").addEventListener("click", () => {
    if (timer) return pause();
    at("play").textContent = "Pause";
    timer = setInterval(() => move(1) || pause(), PACE);
  });
}
