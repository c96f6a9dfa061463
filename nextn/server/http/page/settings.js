// What every request of this page asks for: the settings at the top.

const at = (id) => document.getElementById(id);
const FIXED = 3; // drafts that the page asks for by default
const MOST = 8;

/** Fills in the depths to choose from. `usual`: what a request gets that asks for none. */
export function offerDepths(usual) {
  const chosen = at("drafts").value || String(FIXED);
  const own = new Option(usual === "auto" ? "automatic" : `the server's, ${usual}`, "server");
  const fixed = Array.from({ length: MOST }, (_, i) => new Option(String(i + 1), String(i + 1)));
  at("drafts").replaceChildren(...fixed, own);
  at("drafts").value = chosen;
}

/** The field that asks for the chosen depth; nothing where the server decides. */
export function speculative() {
  const chosen = at("drafts").value;
  return at("drafts").disabled || chosen === "server" ? {} : { speculative: { num_steps: Number(chosen) } };
}

/** The other fields. A seed is left out if there is none. */
export function sampling() {
  const seed = at("seed").value === "" ? {} : { seed: at("seed").valueAsNumber };
  return { max_tokens: at("max-tokens").valueAsNumber, temperature: at("temperature").valueAsNumber, ...seed };
}
