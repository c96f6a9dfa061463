// The chat tab: a conversation, and what speculation did in each answer.

import { number, percent } from "./metrics.js";
import { help } from "./server.js";
import { sampling, speculative } from "./settings.js";
import { stream } from "./stream.js";

const at = (id) => document.getElementById(id);

let said = []; // messages so far
let running = null;

export const hush = () => running?.abort();

function turn(role) {
  const item = document.createElement("li");
  item.className = role;
  item.append(...["reasoning", "content", "note"].map((name) => Object.assign(document.createElement("p"), { className: name })));
  at("talk").append(item);
  return (name, text) => (item.querySelector(`.${name}`).textContent = text);
}

async function answer() {
  const mine = (running = new AbortController());
  at("hush").disabled = false;
  at("send").disabled = true;
  const put = turn("assistant");
  let content = "", reasoning = "", usage = null;
  try {
    const body = { messages: said, ...sampling(), ...speculative(), return_spec_tokens_details: true };
    for await (const chunk of stream("v1/chat/completions", body, mine.signal)) {
      usage = chunk.usage ?? usage;
      content += chunk.choices[0]?.delta.content ?? "";
      reasoning += chunk.choices[0]?.delta.reasoning_content ?? "";
      put("content", content);
      put("reasoning", reasoning);
    }
    put("note", summary(usage));
  } catch (error) {
    put("note", mine.signal.aborted ? "Stopped." : error.message);
    if (error.advice) help(error);
  }
  if (running !== mine) return; // a new conversation has begun
  said.push({ role: "assistant", content });
  running = null;
  at("hush").disabled = true;
  at("send").disabled = false;
}

/** In the words of `nextn chat`. */
function summary(usage) {
  const { accept_length, accepted, proposed } = usage.spec_details;
  const rates = accepted.map((held, i) => percent(held / proposed[i])).join(" ");
  return `${number(usage.completion_tokens)} tokens, accept length ${number(accept_length, 2)}${rates && ` (${rates})`}`;
}

export function chat() {
  at("say").addEventListener("submit", (event) => {
    event.preventDefault();
    const content = at("message").value;
    if (running) return;
    turn("user")("content", content);
    said.push({ role: "user", content });
    at("message").value = "";
    answer();
  });
  at("hush").addEventListener("click", hush);
  at("clear").addEventListener("click", () => {
    hush();
    running = null;
    said = [];
    at("talk").replaceChildren();
    at("hush").disabled = true;
    at("send").disabled = false;
  });
}
