// The server's load, once a second while the page can be seen: sparklines from /metrics' counters, and what
// automatic depth does, in the words that /v1/loads has from the log.

import { number, percent } from "./metrics.js";
import { ask, help } from "./server.js";
import { Spark } from "./sparks.js";

const PERIOD = 1000, LATER = 3000; // ms; the second after a failure

/** Prometheus' text -> name and labels as they are written, but dp_rank -> value, added up over replicas. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (line && !line.startsWith("#")) {
      const at = line.lastIndexOf(" ");
      const name = line.slice(0, at).replace(/dp_rank="\d+",?/, "").replace("{}", "");
      found.set(name, (found.get(name) ?? 0) + Number(line.slice(at + 1)));
    }
  }
  return found;
}

/** What happened between two readings: tokens/s, accept length, running requests. NaN: nothing to divide. */
export function between(before, now) {
  const grown = (name) => now.get(`nextn:${name}_total`) - (before?.values.get(`nextn:${name}_total`) ?? NaN);
  const seconds = (now.get("at") - (before?.values.get("at") ?? NaN)) / 1000;
  const steps = grown("spec_verify_steps");
  return [
    Math.max(0, grown("generation_tokens") / seconds),
    steps > 0 ? grown("spec_committed_tokens") / steps : NaN,
    now.get("nextn:num_running_reqs"),
  ];
}

export function watch(list, words, auto) {
  const sparks = [
    new Spark("tokens/s", (v) => number(v)),
    new Spark("accept length", (v) => number(v, 2)),
    new Spark("running requests", (v) => number(v)),
  ];
  list.replaceChildren(...sparks.map((spark) => spark.element));
  let before = null, metered = true, timer = 0;

  async function read() {
    const loads = await (await ask("v1/loads?include=spec")).json();
    const several = loads.loads.length > 1;
    auto.textContent = loads.loads
      .filter((load) => load.speculative.auto_line)
      .map((load) => (several ? `replica ${load.dp_rank}: ` : "") + load.speculative.auto_line)
      .join("; ");
    if (!metered) return;
    const now = parse(await (await ask("metrics")).text());
    now.set("at", performance.now());
    between(before, now).forEach((value, i) => sparks[i].push(value));
    before = { values: now };
    const get = (name) => now.get(`nextn:${name}`);
    const ratio = (part, whole) => get(part) / Math.max(get(whole), 1);
    words.textContent =
      `${number(get("num_queue_reqs"))} queued; ${percent(ratio("num_used_tokens", "max_total_num_tokens"))} of the ` +
      `KV cache in use; ${percent(ratio("cached_tokens_total", "prompt_tokens_total"))} of prompt tokens found in the ` +
      "prefix cache so far";
    if (get("engine_up") === 0) throw Object.assign(new Error("no engine"), { advice: "The engine is not running. The server starts it again by itself; the reason is in its log." });
  }

  async function look() {
    let wait = PERIOD;
    if (!document.hidden) {
      try {
        await read();
        help(null);
      } catch (error) {
        if (error.status === 404) {
          metered = false;
          words.textContent = "This server was started with --no-enable-metrics, so there are no metrics.";
        } else {
          help(error);
          before = null;
          wait = LATER;
          if (error.status === 401) return; // until another key is typed in
        }
      }
    }
    timer = setTimeout(look, wait);
  }
  look();
  return () => {
    clearTimeout(timer);
    look();
  };
}
