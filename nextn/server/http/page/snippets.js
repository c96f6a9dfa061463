// A request of this page as a command and as a program.

import { key } from "./server.js";

/** As a command line. The key is not in it. */
export function curl(path, body) {
  const lines = [`curl ${location.origin}/${path}`, "-H 'Content-Type: application/json'"];
  if (key.get()) lines.push('-H "Authorization: Bearer $NEXTN_API_KEY"');
  lines.push(`-d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

/** As a program for OpenAI's client, which sends fields that it does not know as `extra_body`. */
export function python(model, body) {
  const { speculative, ...known } = body;
  const secret = key.get() ? 'os.environ["NEXTN_API_KEY"]' : '"none"';
  const fields = Object.entries({ model, ...known }).map(([name, value]) => `    ${name}=${JSON.stringify(value)},`);
  if (speculative) fields.push(`    extra_body={"speculative": ${JSON.stringify(speculative)}},`);
  return [
    ...(key.get() ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${location.origin}/v1", api_key=${secret})`,
    "answer = client.completions.create(",
    ...fields,
    ")",
    "print(answer.choices[0].text)",
  ].join("\n");
}

/** Copies the text and shows it in `box`: a page that came over plain HTTP may not be allowed to copy. */
export async function copy(text, box, button) {
  box.textContent = text;
  box.hidden = false;
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy it from below";
  }
  setTimeout(() => (button.textContent = name), 1500);
}
