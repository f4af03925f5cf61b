// Requests to this server: with the key, with errors for users, and with server-sent events.
import { connection } from "./connection.js";

const SHELF = "forescribe.key";

export function key() {
  return sessionStorage.getItem(SHELF) || "";
}

export function setKey(value) {
  if (value) sessionStorage.setItem(SHELF, value);
  else sessionStorage.removeItem(SHELF);
}

// `status` 0: no answer. `after`: seconds until a retry, as given by the server.
export class Refusal extends Error {
  constructor(message, { status = 400, code = "", after = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code, after });
  }

  get needsKey() {
    return this.status === 401;
  }
}

function unanswered() {
  connection.heard(false);
  return new Refusal("The server does not answer.", { status: 0 });
}

function authorised(headers = {}) {
  return key() ? { ...headers, Authorization: `Bearer ${key()}` } : headers;
}

// The answer, if it is successful. Throws Refusal.
export async function ask(path, { headers, ...rest } = {}) {
  const options = { ...rest, headers: authorised(headers), cache: "no-store" };
  const answer = await broken(() => fetch(path, options));
  connection.heard(true);
  if (!answer.ok) throw refusal(answer.status, await answer.text().catch(() => ""), answer.headers.get("Retry-After"));
  return answer;
}

export async function askJson(path, options) {
  return bodyOf(await ask(path, options), "json");
}

export async function askBlob(path, options) {
  return bodyOf(await ask(path, options), "blob");
}

// `kind`: "json", "blob" or "text".
export function bodyOf(answer, kind) {
  return broken(() => answer[kind]());
}

// A connection that breaks, before or within the answer, is a TypeError in every browser.
async function broken(work) {
  try {
    return await work();
  } catch (error) {
    throw error instanceof TypeError ? unanswered() : error;
  }
}

function refusal(status, text, after) {
  const told = { status, after: Number(after) || 0 };
  try {
    const body = JSON.parse(text);
    const { message, code } = body.error || { message: body.detail, code: "" };
    return new Refusal(String(message || `The server answered ${status}.`), { ...told, code: code || "" });
  } catch {
    return new Refusal(`The server answered ${status}.`, told);
  }
}

// Server-sent events of an answer: {event, data, id}. EventSource cannot send the key.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await broken(() => reader.read());
      if (done) return;
      held += value.replaceAll("\r", "");
      const whole = held.split("\n\n");
      held = whole.pop();
      for (const block of whole) {
        const event = parsed(block);
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const event = { event: "message", data: "", id: null };
  for (const line of block.split("\n")) {
    const [, name, value] = line.match(/^(\w*):? ?(.*)$/) || [];
    if (name === "data") event.data += (event.data && "\n") + value;
    else if (name === "event" || name === "id") event[name] = value;
  }
  return event;
}
