// Requests to this server, and what to do when it does not serve.

/** The key is kept for this tab only. */
export const key = {
  get: () => sessionStorage.getItem("nextn-api-key") ?? "",
  set: (value) => sessionStorage.setItem("nextn-api-key", value),
};

/** The answer of any endpoint. Throws an Error in the server's own words, with `status` and `advice`; status
 * 0: there is no server. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw options.signal?.aborted ? error : problem(0, "the server does not answer");
  }
  if (response.ok) return response;
  const text = await response.text();
  let said = text.slice(0, 200);
  try {
    said = JSON.parse(text).error.message;
  } catch {
    // not an answer of nextn's: a proxy's, say
  }
  throw problem(response.status, said);
}

function problem(status, said) {
  return Object.assign(new Error(said), { status, advice: advice(status) });
}

/** What a person can do about it; "" where the server's words are enough. */
function advice(status) {
  if (status === 0) {
    return `No server answers at ${location.origin}. Start it again with "nextn serve" and the same --port, or see its log. This page reconnects by itself.`;
  }
  if (status === 401) {
    const trouble = key.get() ? "The server does not accept this API key." : "This server asks for an API key.";
    return `${trouble} Type the one it was started with (--api-key) into the field at the top, then press Enter.`;
  }
  if (status === 503) return "The server cannot take this request now: it is full, or its engine is not running. Try again, or see its log.";
  return "";
}

/** Shows the advice of an error at the top of the page; null takes it away. */
export function help(error) {
  const box = document.getElementById("help");
  const said = error?.advice ?? "";
  if (box.firstElementChild.textContent !== said) box.firstElementChild.textContent = said;
  box.hidden = said === "";
}
