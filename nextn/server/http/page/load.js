// The server's load, from /metrics, once a second while the page can be seen.

import { number, percent, show } from "./metrics.js";
import { ask } from "./stream.js";

const PERIOD = 1000; // ms

/** Prometheus' text -> name and labels as they are written -> value. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (line && !line.startsWith("#")) {
      const at = line.lastIndexOf(" ");
      found.set(line.slice(0, at), Number(line.slice(at + 1)));
    }
  }
  return found;
}

/** [name, value] pairs to show. */
export function shown(metrics) {
  const get = (name) => metrics.get(`nextn:${name}`);
  const rates = [];
  for (let depth = 1; ; depth += 1) {
    const at = `_total{position="${depth}"}`;
    const drafted = get(`spec_draft_tokens${at}`);
    if (drafted === undefined) break;
    rates.push(percent(get(`spec_accepted_tokens${at}`) / drafted));
  }
  return [
    ["running", number(get("num_running_reqs"))],
    ["queued", number(get("num_queue_reqs"))],
    ["tokens/s", number(get("gen_throughput"), 1)],
    ["accept length", number(get("spec_accept_length") || NaN, 2)],
    ["drafts accepted so far, by depth", rates.join(" · ") || "–"],
    ["KV in use", percent(get("token_usage"))],
    ["prompt tokens found in the cache", percent(get("cache_hit_rate"))],
  ];
}

/** What automatic depth does at this load; "" where the depth of drafts is fixed. */
export function automatic(metrics) {
  const gain = metrics.get("nextn:auto_draft_gain");
  if (gain === undefined) return "";
  return metrics.get("nextn:auto_drafting")
    ? `auto: drafting at this load; drafts make ${number(gain, 2)} x`
    : `auto: not drafting at this load; drafts would make ${number(gain, 2)} x`;
}

export function watch(list, auto, trouble) {
  async function look() {
    if (!document.hidden) {
      try {
        const metrics = parse(await (await ask("metrics")).text());
        show(list, shown(metrics));
        auto.textContent = automatic(metrics);
        auto.hidden = auto.textContent === "";
        trouble.hidden = true;
      } catch (error) {
        trouble.textContent =
          error.status === 404 ? "This server was started without --enable-metrics." : `No figures: ${error.message}`;
        trouble.hidden = false;
      }
    }
    setTimeout(look, PERIOD);
  }
  look();
}
