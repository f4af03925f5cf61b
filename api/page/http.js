// Requests to this server: with the key, errors as they are told to people, events as they come.

const SHELF = "forescribe.key";

export function key() {
  return sessionStorage.getItem(SHELF) || "";
}

export function setKey(value) {
  if (value) sessionStorage.setItem(SHELF, value);
  else sessionStorage.removeItem(SHELF);
}

export class Refusal extends Error {
  constructor(message, { status = 0, code = "" } = {}) {
    super(message);
    this.status = status;
    this.code = code;
  }

  get needsKey() {
    return this.status === 401;
  }
}

function authorised(headers = {}) {
  return key() ? { ...headers, Authorization: `Bearer ${key()}` } : headers;
}

// The answer, if it is a success. Throws Refusal.
export async function ask(path, { headers, ...rest } = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...rest, headers: authorised(headers), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server cannot be reached.");
  }
  if (!answer.ok) throw refusal(answer.status, await answer.text());
  return answer;
}

function refusal(status, text) {
  try {
    const body = JSON.parse(text);
    const { message, code } = body.error || { message: body.detail, code: "" };
    return new Refusal(String(message || `The server answered ${status}.`), { status, code });
  } catch {
    return new Refusal(`The server answered ${status}.`, { status });
  }
}

// A form on its way, with progress from 0 to 1, which fetch does not tell. The answer's JSON.
export function upload(path, form, { onprogress, signal }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(authorised())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && onprogress(event.loaded / event.total);
    request.onload = () => {
      if (request.status >= 400) reject(refusal(request.status, request.responseText));
      else resolve(JSON.parse(request.responseText));
    };
    request.onerror = () => reject(new Refusal("The connection broke while the recording was sent."));
    request.onabort = () => reject(new DOMException("cancelled", "AbortError"));
    signal?.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

// Server-sent events of an answer: {event, data, id}. EventSource could not carry the key.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
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
