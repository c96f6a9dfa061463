// A completion as it streams in, and the server's other answers.

/** The key is kept for this tab only. */
export const key = {
  get: () => sessionStorage.getItem("nextn-api-key") ?? "",
  set: (value) => sessionStorage.setItem("nextn-api-key", value),
};

/** The answer of any endpoint. Throws an Error in the server's own words. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const text = await response.text();
  let said = text.slice(0, 200);
  try {
    said = JSON.parse(text).error.message;
  } catch {
    // not an answer of nextn's: a proxy's, say
  }
  const error = new Error(response.status === 401 ? `${said} (the field is at the top)` : said);
  error.status = response.status;
  throw error;
}

/** Yields the chunks of a streamed completion, each with the time (ms) at which it came. */
export async function* completion(body, signal) {
  const response = await ask("v1/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream broke off");
    const now = performance.now();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      yield [chunk, now];
    }
  }
}
