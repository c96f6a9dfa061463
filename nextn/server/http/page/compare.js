// One prompt with drafts and without: the two runs, and what is said of them.

import { number } from "./metrics.js";
import { Pane } from "./pane.js";
import { tell } from "./player.js";
import { plot } from "./race.js";
import { help } from "./server.js";
import { sampling, speculative } from "./settings.js";
import { stream } from "./stream.js";
import { Timing } from "./timing.js";

const at = (id) => document.getElementById(id);
const WARM_UP = 8; // tokens
const RUNS = 5; // of each at most, as one run of a tenth of a second may be disturbed
const SECONDS = 2; // after which no further runs begin
const TOLD = { return_draft_depths: true, return_draft_steps: true, return_spec_tokens_details: true };

let running = null; // the AbortController of what is under way
let drafter = "MTP"; // what the server drafts with; "none"

export const stop = () => running?.abort();
export const draftsWith = (name) => (drafter = name);

/** What the form asks for, as a client would. */
export const asked = () => ({ prompt: at("prompt").value, ...sampling(), ...speculative() });

/** Shows panes for these titles and the prompt. */
function begin(titles, prompt) {
  const panes = titles.map((title) => new Pane(title, prompt));
  at("panes").replaceChildren(...panes.map((pane) => pane.element));
  at("race").hidden = at("player").hidden = true;
  at("verdict").textContent = at("source").textContent = "";
  return panes;
}

/** Shows an example that was recorded before. */
export function show(example) {
  const panes = begin([`With MTP, ${example.num_steps} drafts`, "Without MTP"], example.prompt);
  panes.forEach((pane, i) => {
    pane.push(example.answers[i]);
    pane.end(null);
  });
  finish(panes);
  at("source").textContent = `A recorded example: ${example.recorded}. Press "Generate both" to run a prompt on this server.`;
}

/** Two panes run one after the other, so that neither slows the other down, after a short run of the same
 * prompt that nobody sees: else the second alone would find it in the prefix cache. Short runs are repeated for
 * their times, in turn. */
export async function generate() {
  running?.abort();
  const mine = (running = new AbortController());
  // Both draw with the same seed.
  const body = { seed: Math.floor(Math.random() * 2 ** 31), ...asked(), ...TOLD };
  const steps = body.speculative?.num_steps;
  const many = steps === undefined ? "" : `, ${steps} draft${steps === 1 ? "" : "s"}`;
  const both = drafter !== "none";
  const panes = begin(both ? [`With ${drafter}${many}`, `Without ${drafter}`] : ["Without MTP"], body.prompt);
  at("verdict").textContent = "Generating …";
  at("stop").disabled = false;
  const bodies = [body, { ...body, speculative: false }];
  const began = performance.now();
  if (both) await quietly({ ...body, max_tokens: Math.min(WARM_UP, body.max_tokens) }, mine.signal);
  let done = true;
  for (const [i, pane] of panes.entries()) {
    done &&= await run(pane, bodies[i], mine.signal);
  }
  for (let runs = 1; both && done && runs < RUNS && performance.now() - began < 1000 * SECONDS; runs += 1) {
    if (running === mine) at("verdict").textContent = `Timing run ${runs + 1} of at most ${RUNS} …`;
    for (const [i, pane] of panes.entries()) {
      const timing = await quietly(bodies[i], mine.signal);
      if (timing) pane.again(timing);
    }
  }
  if (running !== mine) return;
  running = null;
  at("stop").disabled = true;
  at("verdict").textContent = "";
  if (done) finish(panes);
}

/** Runs one completion in its pane. False when it was stopped or failed; the pane says why. */
async function run(pane, body, signal) {
  try {
    for await (const chunk of stream("v1/completions", body, signal)) pane.push(chunk);
  } catch (error) {
    pane.end(signal.aborted ? "Stopped." : error.message);
    if (error.advice) help(error);
    return false;
  }
  pane.end(null);
  return true;
}

/** Runs one completion that is not shown. Returns its times, or null if it was stopped or failed: the shown
 * run tells of that. */
async function quietly(body, signal) {
  const timing = new Timing();
  try {
    for await (const chunk of stream("v1/completions", body, signal)) {
      for (const choice of chunk.choices) choice.draft_steps.forEach((step) => timing.take(step));
    }
  } catch {
    return null;
  }
  return timing;
}

function finish(panes) {
  at("verdict").replaceChildren(...verdict(...panes));
  tell(panes[0]);
  if (panes.length < 2) return;
  plot(at("plot"), [[panes[0], "with"], [panes[1], "without"]]);
  at("race").hidden = false;
}

/** What is said of one pane, or of both side by side. */
function verdict(mtp, plain) {
  if (!plain) return [`Done: ${number(mtp.tokens)} tokens. This server has no drafter, so there is nothing to compare.`];
  const mark = document.createElement("span");
  const same = mtp.text === plain.text;
  mark.className = same ? "same" : "differs";
  mark.textContent = same
    ? `✓ identical: the same ${number(mtp.text.length)} characters with ${drafter} and without`
    : `✗ different from character ${number(parting(mtp.text, plain.text) + 1)} on`;
  const ratio = mtp.timing.speed / plain.timing.speed; // not of a single token
  const runs = mtp.runs.length > 1 ? `, the median of ${mtp.runs.length} runs each` : "";
  return [mark, Number.isFinite(ratio) ? `; ${number(ratio, 2)} x the tokens/s with ${drafter}, by the engine's clock${runs}.` : "."];
}

/** The first index at which they differ. */
function parting(a, b) {
  let i = 0;
  while (i < a.length && a[i] === b[i]) i += 1;
  return i;
}
