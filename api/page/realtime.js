// The words of a recording while it is spoken, from sessions of /v1/realtime (docs/live.md). What is said while there
// is no session waits for the next one; what a broken one had not ended has its words in the transcript alone.
import { pause, persistently } from "./connection.js";
import { ask, key, Refusal } from "./http.js";
import { RATE } from "./microphone.js";

const WAIT_MS = 4000;
const KEPT = 3750; // pieces of 80 ms that wait for a session
const LAST_WORDS_MS = 15000;
const REFUSED = [1008, 4000]; // codes of closes that will come again
const TRANSCRIPT = "conversation.item.input_audio_transcription";

export class Realtime {
  // `told` hears `begun(item)`, `changed(item)`, and `state("live" | "waiting" | "off", reason)`. An item has `text`,
  // which was released, its `tail`, which may change, and `failure`; `said` has its speakers in turn, once it is
  // complete.
  constructor({ language, diarize, redact, terms, replacements }, told) {
    this.hidden = Boolean(redact);
    Object.assign(this, { asked: { language, diarize, terms, replacements }, diarize, told, items: [], waiting: [], session: null });
    this.stop = new AbortController();
    this.#run();
  }

  push(samples) {
    this.waiting.push(samples);
    if (this.waiting.length > KEPT) this.waiting.shift();
    this.#send();
  }

  // The recording has ended: the last words, if they come soon.
  finish() {
    if (!this.session?.ready) return this.close();
    this.session.say("input_audio_buffer.commit");
    this.finishing = true;
    setTimeout(() => this.close(), LAST_WORDS_MS);
  }

  close() {
    this.stop.abort();
    this.session?.leave();
  }

  async #run() {
    const { signal } = this.stop;
    if (this.hidden) return this.told.state("off", "personal data is redacted in what is complete.");
    const ontrouble = (error) => this.told.state("waiting", error.message);
    while (!signal.aborted) {
      try {
        await persistently(() => this.#asked(), { signal, ontrouble });
        this.session = new Session(this.#config(), (event) => this.#heard(event));
        const { code, reason } = await this.session.ended;
        if (signal.aborted || this.finishing) return this.stop.abort();
        for (const item of this.items) if (item.open) this.#change(item, { tail: "", open: false });
        if (REFUSED.includes(code)) throw new Refusal(reason);
        this.told.state("waiting", reason || "The connection was lost.");
        await pause(WAIT_MS, signal);
      } catch (error) {
        if (signal.aborted) return;
        this.stop.abort();
        if (!(error instanceof Refusal)) throw error;
        return this.told.state("off", error.status === 404 ? "this server has no live transcription." : error.message);
      }
    }
  }

  // Whether there may be a session: browsers do not say why a socket was refused.
  async #asked() {
    const { signal } = this.stop;
    await ask("ready", { signal });
    const body = JSON.stringify({ expires_after: { anchor: "created_at", seconds: 10 }, session: this.#config() });
    const headers = { "Content-Type": "application/json" };
    await ask("v1/realtime/client_secrets", { method: "POST", headers, body, signal });
  }

  #config() {
    const input = { format: { type: "audio/pcm", rate: RATE }, turn_detection: { type: "server_vad" } };
    const asked = Object.entries(this.asked);
    input.transcription = Object.fromEntries(asked.filter(([, value]) => value && value.length !== 0));
    return { type: "transcription", include: ["forescribe.hypothesis"], audio: { input } };
  }

  #heard(event) {
    const { type, item_id: id } = event;
    if (type === "session.updated") {
      this.told.state("live", "");
      return this.#send();
    }
    if (type === "input_audio_buffer.speech_started") return this.#started(id);
    const item = this.items.findLast((one) => one.id === id);
    if (type === "input_audio_buffer.speech_stopped") item.stopped = true;
    else if (type === "input_audio_buffer.committed") this.answered ||= !item.stopped; // by us
    else if (type === "forescribe.hypothesis") this.#change(item, { tail: event.tail });
    else if (type === `${TRANSCRIPT}.delta`) {
      const { text, tail } = item;
      this.#change(item, { text: text + event.delta, tail: tail.startsWith(event.delta) ? tail.slice(event.delta.length) : "" });
    } else if (type === `${TRANSCRIPT}.segment` && this.diarize) this.#said(item, event);
    else if (type === `${TRANSCRIPT}.completed`) this.#change(item, { text: event.transcript, tail: "", open: false });
    else if (type === `${TRANSCRIPT}.failed`) this.#change(item, { tail: "", open: false, failure: event.error.message });
    else if (type === "error") this.answered = this.finishing;
    if (this.finishing && this.answered && !this.items.some((one) => one.open)) this.close();
  }

  #send() {
    if (!this.session?.ready) return;
    for (const samples of this.waiting.splice(0)) this.session.say("input_audio_buffer.append", { audio: base64(samples) });
  }

  #started(id) {
    const item = { id, text: "", tail: "", said: [], open: true, stopped: false, failure: "" };
    this.items.push(item);
    this.told.begun(item);
  }

  #said(item, { speaker, text }) {
    const last = item.said.at(-1);
    if (last?.speaker === speaker) last.text += text;
    else item.said.push({ speaker, text });
  }

  #change(item, news) {
    this.told.changed(Object.assign(item, news));
  }
}

// One socket. `ended` resolves to the code of its close, and the server's reason.
class Session {
  constructor(config, hear) {
    this.configured = false;
    this.reason = "";
    this.ended = new Promise((resolve) => (this.end = resolve));
    const address = new URL("v1/realtime?intent=transcription", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = (this.socket = opened(address));
    socket.onclose = ({ code }) => this.leave(code);
    socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      if (event.type === "session.created") this.say("session.update", { event_id: "configure", session: config });
      if (event.type === "session.updated") this.configured = true;
      if (event.type === "error") this.reason = event.error.message;
      hear(event);
      if (event.type === "error" && event.error.event_id === "configure") this.leave(REFUSED[0]);
    };
  }

  // What is said to one that is being closed is lost, and browsers log an error.
  get ready() {
    return this.configured && this.socket.readyState === WebSocket.OPEN;
  }

  say(type, fields = {}) {
    this.socket.send(JSON.stringify({ type, ...fields }));
  }

  leave(code = 1006) {
    this.socket.onclose = this.socket.onmessage = null;
    this.socket.close();
    this.end({ code, reason: this.reason });
  }
}

function opened(address) {
  try {
    return new WebSocket(address, key() ? ["realtime", `openai-insecure-api-key.${key()}`] : ["realtime"]);
  } catch {
    throw new Refusal("Browsers cannot send this key in a live session: it has characters besides letters, digits, - and _.");
  }
}

function base64(samples) {
  return btoa(String.fromCharCode(...new Uint8Array(samples.buffer)));
}
