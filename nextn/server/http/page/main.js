// The page: what is asked, in which order, and what is said of the two texts.

import { number } from "./metrics.js";
import { watch } from "./load.js";
import { Pane } from "./pane.js";
import { plot } from "./race.js";
import { ask, completion, key } from "./stream.js";
import { themes } from "./theme.js";

const at = (id) => document.getElementById(id);
const EXAMPLE = 'def read_lines(path):\n    """Return the lines of a file."""\n';
const WARM_UP = 8; // tokens

let running = null; // the AbortController of what is under way
let drafter = "MTP"; // what the server drafts with; "none"

/** What the form asks for, but for `speculative`. Both panes draw with the same seed. */
function asked() {
  const seed = at("seed").value === "" ? Math.floor(Math.random() * 2 ** 31) : at("seed").valueAsNumber;
  return {
    prompt: at("prompt").value,
    max_tokens: at("max-tokens").valueAsNumber,
    temperature: at("temperature").valueAsNumber,
    seed,
    stream_options: { include_usage: true },
    return_draft_depths: true,
    return_spec_tokens_details: true,
  };
}

/** Runs one completion in its pane. False when it was stopped or failed; the pane says why. */
async function run(pane, body, signal) {
  pane.sent = performance.now();
  try {
    for await (const [chunk, now] of completion(body, signal)) pane.push(chunk, now);
  } catch (error) {
    pane.end(signal.aborted ? "Stopped." : error.message);
    return false;
  }
  pane.end(null);
  return true;
}

/** Two panes run one after the other, so that neither slows the other down, after a short run of the same
 * prompt that nobody sees: else the second alone would find it in the prefix cache. */
async function generate() {
  running?.abort();
  const mine = (running = new AbortController());
  const body = asked();
  const drafts = at("drafts").value;
  const speculative = drafts === "" ? {} : { speculative: { num_steps: Number(drafts) } };
  const both = at("compare").checked && drafter !== "none";
  const titles = drafter === "none" ? ["Without MTP"] : [`With ${drafter}`, ...(both ? [`Without ${drafter}`] : [])];
  const panes = titles.map((title) => new Pane(title, body.prompt));
  at("panes").replaceChildren(...panes.map((pane) => pane.element));
  at("race").hidden = true;
  at("verdict").textContent = "Generating …";
  at("stop").disabled = false;
  if (both) await warmUp({ ...body, ...speculative, max_tokens: WARM_UP }, mine.signal);
  let done = await run(panes[0], { ...body, ...speculative }, mine.signal);
  if (done && both) {
    done = await run(panes[1], { ...body, speculative: false }, mine.signal);
    if (done) race(panes);
  }
  if (done) at("verdict").replaceChildren(...verdict(...panes));
  else if (running === mine) at("verdict").textContent = "";
  if (running === mine) {
    running = null;
    at("stop").disabled = true;
  }
}

function race([mtp, plain]) {
  plot(at("plot"), [[mtp, ""], [plain, "plain"]]);
  at("race").hidden = false;
}

async function warmUp(body, signal) {
  try {
    for await (const _ of completion(body, signal));
  } catch {
    // the run that follows meets the same, and says so
  }
}

/** What is shown of one pane, or of both side by side. */
function verdict(mtp, plain) {
  if (!plain) {
    return [`Done: ${number(mtp.tokens)} tokens, accept length ${number(mtp.acceptLength, 2)}.`];
  }
  const mark = document.createElement("span");
  const same = mtp.text === plain.text;
  mark.className = same ? "same" : "differs";
  mark.textContent = same
    ? `✓ identical: the same ${number(mtp.text.length)} characters with ${drafter} and without`
    : `✗ different from character ${number(parting(mtp.text, plain.text) + 1)} on`;
  const ratio = mtp.speed / plain.speed; // not of a single token
  return [mark, Number.isFinite(ratio) ? `; ${number(ratio, 2)} x the tokens/s with ${drafter}.` : "."];
}

/** The first index at which they differ. */
function parting(a, b) {
  let i = 0;
  while (i < a.length && a[i] === b[i]) i += 1;
  return i;
}

async function greet() {
  try {
    const info = await (await ask("server_info")).json();
    const depth = info.internal_states[0].speculative_num_steps;
    drafter = info.engine?.drafter ?? "MTP";
    const drafts = drafter === "none" ? "no MTP" : `${drafter}, ${depth} drafts`;
    at("without").textContent = `Also without ${drafter === "none" ? "MTP" : drafter}`;
    at("compare").disabled = at("drafts").disabled = drafter === "none";
    at("model").textContent = `${info.served_model_name} · ${drafts} · nextn ${info.version}`;
  } catch (error) {
    at("model").textContent = `no word from the server: ${error.message}`;
  }
}

themes(at("theme"));
at("prompt").value = EXAMPLE;
at("key").value = key.get();
at("key").addEventListener("change", () => {
  key.set(at("key").value);
  greet();
});
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
at("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
});
watch(at("load"), at("auto"), at("trouble"));
greet();
