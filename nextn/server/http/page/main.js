// The page: puts its parts together.

import { chat, hush } from "./chat.js";
import { asked, draftsWith, generate, show, stop } from "./compare.js";
import { watch } from "./load.js";
import { controls } from "./player.js";
import { presets } from "./presets.js";
import { ask, help, key } from "./server.js";
import { offerDepths } from "./settings.js";
import { copy, curl, python } from "./snippets.js";
import { tabs } from "./tabs.js";
import { themes } from "./theme.js";

const at = (id) => document.getElementById(id);
const EXAMPLE = "page/example.json";

let model = "nextn-tiny";
let touched = false; // has anything been generated? Then no example is shown

async function greet() {
  try {
    const info = await (await ask("server_info")).json();
    const depth = info.internal_states[0].speculative_num_steps;
    const drafter = info.engine?.drafter ?? "MTP";
    const drafts = drafter === "none" ? "no MTP" : `${drafter}, ${depth} drafts`;
    model = info.served_model_name;
    draftsWith(drafter);
    offerDepths(depth);
    at("drafts").disabled = drafter === "none";
    at("run").textContent = drafter === "none" ? "Generate" : "Generate both";
    at("model").textContent = `${model} · ${drafts} · nextn ${info.version}`;
  } catch (error) {
    at("model").textContent = "the server does not answer";
    help(error);
  }
}

async function showExample() {
  const example = await (await fetch(EXAMPLE)).json();
  if (!touched) show(example);
}

themes(at("theme"));
tabs(document.querySelector("[role=tablist]"));
presets(at("preset"), at("prompt"));
offerDepths("auto");
controls();
chat();

const lookAgain = watch(at("sparks"), at("load"), at("auto"));
at("key").value = key.get();
at("key").addEventListener("change", () => {
  key.set(at("key").value);
  greet();
  lookAgain();
});
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  touched = true;
  generate();
});
at("stop").addEventListener("click", stop);
at("curl").addEventListener("click", () => copy(curl("v1/completions", asked()), at("snippet"), at("curl")));
at("python").addEventListener("click", () => copy(python(model, asked()), at("snippet"), at("python")));
at("rejected").addEventListener("change", () => at("panes").classList.toggle("accepted-only", !at("rejected").checked));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    stop();
    hush();
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    (at("compare").hidden ? at("say") : at("ask")).requestSubmit();
  }
});
showExample();
greet();
