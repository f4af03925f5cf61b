// The words of a recording while it is spoken, from sessions of /v1/realtime (docs/live.md).
//
// Audio is not acknowledged, but items are: samples are kept until the item that they belong to has its
// transcript. After a broken connection the next session gets them again, from the beginning of the last item,
// which the server may have ended in the middle of a word.
import { passing, pause, persistently } from "./connection.js";
import { ask, key, Refusal } from "./http.js";
import { RATE } from "./microphone.js";

const KEPT = 300 * RATE; // samples, at most
const WAITS_MS = [500, 1000, 2000, 4000, 8000, 15000];
const LASTING_MS = 10000; // a session that ends earlier counts as a failed try
const STALLED_MS = 45000; // nothing leaves: the connection is dead
const LAST_WORDS_MS = 15000;
const REFUSED = [1008, 4000]; // codes of closes that will come again
const NO_SESSION = "The server opens no live session: it has too many, or something on the way does not pass WebSockets.";
const TRANSCRIPT = "conversation.item.input_audio_transcription";

export class Realtime {
  // `told` hears `begun(item)`, `changed(item)`, `dropped(items)`, `missing(from_s, to_s)`, and
  // `state("live" | "waiting" | "off", reason)`. An item has `text`, which was released, its `tail`, which may
  // change, and `failure`; `said` has its speakers in turn, once it is complete; `again` says that the next
  // session decodes it once more.
  constructor({ language, diarize }, told) {
    Object.assign(this, { language, diarize, told, pieces: [], length: 0, items: [], session: null });
    this.base = this.sent = 0; // samples: where this session began, and up to where it has been sent
    this.stop = new AbortController();
    addEventListener("offline", () => this.session?.leave(), { signal: this.stop.signal });
    this.#run();
  }

  push(samples) {
    this.pieces.push({ at: this.length, samples });
    this.length += samples.length;
    this.#forget();
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
    const ontrouble = (error) => this.told.state("waiting", error.message);
    for (let tries = 0; !signal.aborted; ) {
      try {
        await persistently(() => this.#asked(), { signal, ontrouble, worth: passing });
        const began = performance.now();
        this.session = new Session(this.#config(), (event) => this.#heard(event));
        const { code, reason } = await this.session.ended;
        this.session = null;
        if (signal.aborted || this.finishing) return this.stop.abort();
        if (REFUSED.includes(code)) throw new Refusal(reason);
        tries = performance.now() - began > LASTING_MS ? 0 : tries + 1;
        this.told.state("waiting", reason || (tries > 1 ? NO_SESSION : "The connection was lost."));
        await pause(WAITS_MS[Math.min(tries, WAITS_MS.length - 1)], signal);
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
    input.transcription = { ...(this.language && { language: this.language }), ...(this.diarize && { diarize: true }) };
    return { type: "transcription", include: ["forescribe.hypothesis"], audio: { input } };
  }

  // -- samples ------------------------------------------------------------------------------------------

  // From where on samples are needed.
  get #needed() {
    const items = this.items.filter((item) => !item.again);
    const open = items.filter((item) => item.open).map((item) => item.start);
    return open.length ? Math.min(...open) : (items.at(-1)?.start ?? this.base);
  }

  #forget() {
    const from = Math.max(this.#needed, this.length - KEPT);
    const first = this.pieces.findIndex(({ at, samples }) => at + samples.length > from);
    this.pieces.splice(0, first < 0 ? this.pieces.length : first);
  }

  // A new session is sent what is needed, and its items take the place of those that had no transcript.
  #begin() {
    const from = this.pieces[0]?.at ?? this.length;
    const again = this.items.filter((item) => item.open || item.start >= from);
    const lost = Math.min(this.sent, ...again.map((item) => item.start));
    if (lost < from) this.told.missing(lost / RATE, from / RATE);
    for (const item of again) this.#change(item, { tail: "", again: true }); // shown until there are other words
    this.base = this.sent = from;
    this.told.state("live", "");
    this.#send();
  }

  #send() {
    this.session?.check();
    if (!this.session?.ready) return;
    let n = this.pieces.length;
    while (n && this.pieces[n - 1].at >= this.sent) n--;
    for (const { samples } of this.pieces.slice(n)) {
      this.session.say("input_audio_buffer.append", { audio: base64(samples) });
      this.sent += samples.length;
    }
  }

  // -- events -------------------------------------------------------------------------------------------

  #heard(event) {
    const { type, item_id: id } = event;
    if (type === "session.updated") return this.#begin();
    if (type === "input_audio_buffer.speech_started") return this.#started(id, event.audio_start_ms);
    const item = this.items.find((one) => one.id === id && !one.again);
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
    if (this.finishing && this.answered && !this.items.some((one) => one.open && !one.again)) this.close();
  }

  #started(id, ms) {
    const item = { id, start: this.base + (ms * RATE) / 1000, text: "", tail: "", said: [], open: true, stopped: false, again: false, failure: "" };
    this.items.push(item);
    this.told.begun(item);
  }

  #said(item, { speaker, text }) {
    const last = item.said.at(-1);
    if (last?.speaker === speaker) last.text += text;
    else item.said.push({ speaker, text });
  }

  #change(item, news) {
    Object.assign(item, news);
    this.told.changed(item);
    if (!item.again && item.text + item.tail) this.#drop();
  }

  // Items that are decoded again.
  #drop() {
    const old = this.items.filter((item) => item.again);
    if (!old.length) return;
    this.items = this.items.filter((item) => !item.again);
    this.told.dropped(old);
  }
}

// One socket. `ended` resolves to the code of its close, and the server's reason.
class Session {
  constructor(config, hear) {
    this.ready = false;
    this.reason = "";
    this.ended = new Promise((resolve) => (this.end = resolve));
    const address = new URL("v1/realtime?intent=transcription", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = (this.socket = opened(address));
    socket.onclose = ({ code }) => this.leave(code);
    socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      if (event.type === "session.created") this.say("session.update", { event_id: "configure", session: config });
      if (event.type === "session.updated") this.ready = true;
      if (event.type === "error") this.reason = event.error.message;
      hear(event);
      if (event.type === "error" && event.error.event_id === "configure") this.leave(REFUSED[0]);
    };
    this.unsent = 0;
    this.moved = performance.now();
  }

  say(type, fields = {}) {
    this.socket.send(JSON.stringify({ type, ...fields }));
    this.unsent = this.socket.bufferedAmount;
  }

  // A connection that takes nothing any more is dead, which browsers notice after minutes.
  check() {
    const { bufferedAmount } = this.socket;
    if (!bufferedAmount || bufferedAmount < this.unsent) this.moved = performance.now();
    if (performance.now() - this.moved > STALLED_MS) this.leave();
  }

  leave(code = 1006) {
    this.ready = false;
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
