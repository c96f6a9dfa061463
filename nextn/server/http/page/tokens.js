// Tokens by how they came: their names, and a step's tokens as they are drawn.

const COLOURS = 8; // deeper drafts share the last one

export const OWN = "the model's own";
export const named = (depth) => (depth === 0 ? OWN : `draft ${depth}`);
export const kind = (depth) => `d${Math.min(depth, COLOURS)}`;
/** A draft that was rejected breaks no line. */
export const flat = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥");

/** A step as [text, depth] of each token that it committed, and its draft_steps entry -> its drafts as
 * {text, depth, accepted}. */
export function draftsOf({ drafts, accepted, parents }) {
  const depths = [];
  return drafts.map((text, i) => {
    const parent = parents ? parents[i] : i - 1;
    depths.push(parent < 0 ? 1 : depths[parent] + 1);
    return { text, depth: depths[i], accepted: accepted.includes(i) };
  });
}

/** One step as an element: accepted drafts, rejected ones where they stood, the model's own token. */
export function drawStep({ number, tokens, drafts }) {
  const element = document.createElement("span");
  element.className = number === 0 ? "" : "step";
  const spans = tokens.map(([text, depth]) =>
    span("span", text, kind(depth), number === 0 ? "from the prompt's step" : `step ${number}: ${depth ? `${named(depth)}, accepted` : OWN}`));
  const rejected = drafts
    .filter((draft) => !draft.accepted)
    .map(({ text, depth }) => span("del", flat(text), `rejected ${kind(depth)}`, `step ${number}: ${named(depth)}, rejected`));
  const last = tokens.at(-1)?.[1] === 0 ? spans.pop() : "";
  element.append(...spans, ...rejected, last);
  return element;
}

function span(name, text, kind, title) {
  const element = document.createElement(name);
  element.className = kind;
  element.textContent = text;
  element.title = title;
  return element;
}
