// The server's load, from /metrics, once a second while the page can be seen.

import { number, percent, show } from "./figures.js";
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
export function figures(metrics) {
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

export function watch(list, trouble) {
  async function look() {
    if (!document.hidden) {
      try {
        show(list, figures(parse(await (await ask("metrics")).text())));
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
