// Recording: words appear while they are spoken, and at the end the recording is sent like a file.
import { clock, lasting } from "./clock.js";
import { h } from "./dom.js";
import { Microphone, prevented, RATE } from "./microphone.js";
import { Realtime } from "./realtime.js";

const FLOOR_DB = -60; // of the meter
const QUIET_PEAK = 33; // of 32768, -60 dB
const QUIET_S = 5; // until the page asks whether the microphone is muted
const GAP_S = 1.5;
const LOOK_MS = 2000; // after a tab was hidden: pieces that waited have come

const element = (id) => document.getElementById(id);

export class Live {
  // `take(files)` receives the recording, `settings()` has the `language` that is spoken, or "", and whether to
  // find speakers.
  constructor({ take, settings, notices }) {
    Object.assign(this, { take, settings, notices, root: element("live"), button: element("record") });
    this.microphone = this.words = this.panel = null;
    const reason = prevented();
    this.button.disabled = Boolean(reason);
    element("microphone").textContent = reason;
    this.button.addEventListener("click", () => this.#start());
    addEventListener("beforeunload", (event) => this.microphone && event.preventDefault());
    addEventListener("hashchange", () => this.microphone || this.#close());
    document.addEventListener("visibilitychange", () => this.microphone && this.#seen());
  }

  async #start() {
    this.button.disabled = true;
    const told = { onpiece: (samples) => this.#heard(samples), onpause: (paused) => this.#paused(paused), onend: () => this.#gone() };
    try {
      this.microphone = await Microphone.open(told);
      this.notices.drop("microphone");
      this.#show();
    } catch (error) {
      this.notices.tell("microphone", error.message);
    }
    this.button.disabled = false;
  }

  #show() {
    this.#close();
    Object.assign(this, { quiet: 0, missed: 0, since: performance.now() });
    this.panel = new Panel(this.root, { stop: () => this.#stop(true), discard: () => this.#stop(false), close: () => this.#close(true) });
    this.words = new Realtime(this.settings(), this.panel);
    this.button.hidden = true;
    this.panel.ends.focus({ preventScroll: true });
    this.#stayAwake();
  }

  #heard(samples) {
    if (!this.panel) return;
    this.words.push(samples);
    const peak = samples.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    this.panel.tick(this.microphone.seconds, peak);
    this.quiet = peak < QUIET_PEAK ? this.quiet + samples.length : 0;
    this.panel.silent(this.quiet > QUIET_S * RATE);
  }

  // Recorded, the microphone is given back, and the recording sent unless it is not wanted.
  async #stop(wanted) {
    const { microphone, words, panel } = this;
    if (!microphone) return;
    panel.ends.disabled = panel.drops.disabled = true;
    const file = await microphone.stop();
    this.microphone = null;
    this.lock?.release();
    this.button.hidden = false;
    this.#title();
    if (wanted) words.finish();
    else this.#close();
    if (wanted) panel.over();
    this.button.focus({ preventScroll: true });
    if (wanted && file) this.take([file]);
    else if (wanted) this.notices.tell("microphone", "The microphone recorded nothing.");
  }

  #gone() {
    this.notices.tell("microphone", "The microphone was disconnected. The recording up to then is sent.");
    this.#stop(true);
  }

  #paused(paused) {
    if (!this.microphone) return;
    if (paused) this.notices.tell("microphone", "The system has taken the microphone away: nothing is recorded until it gives it back.", { kind: "warning" });
    else this.notices.drop("microphone");
  }

  // A hidden tab says that it records, and afterwards what was not recorded.
  #seen() {
    this.#title();
    if (document.hidden) return;
    this.#stayAwake();
    setTimeout(() => {
      if (!this.microphone || document.hidden) return;
      const missed = (performance.now() - this.since) / 1000 - this.microphone.seconds;
      if (missed - this.missed > GAP_S) {
        const text = `While this tab was hidden, the browser did not record ${lasting(missed - this.missed)}.`;
        this.notices.tell("hidden", text, { kind: "warning" });
      }
      this.missed = Math.max(missed, 0);
    }, LOOK_MS);
  }

  #title() {
    const plain = document.title.replace(/^● /, "");
    document.title = this.microphone && document.hidden ? `● ${plain}` : plain;
  }

  // Phones stop recording when their screen goes off.
  #stayAwake() {
    navigator.wakeLock?.request("screen").then(
      (lock) => (this.microphone ? (this.lock = lock) : lock.release()),
      () => {}, // the battery is low
    );
  }

  #close(focus = false) {
    this.words?.close();
    this.words = this.panel = null;
    this.root.hidden = true;
    this.root.replaceChildren();
    if (focus) this.button.focus({ preventScroll: true });
  }
}

const HINT = "Words appear here while you speak.";
const STATES = {
  live: () => "",
  waiting: (reason) => `${reason} The recording goes on; words follow.`,
  off: (reason) => `No words while you speak: ${reason} The recording goes on, and its transcript is made after it.`,
};

const turn = ({ speaker, text }) => h("span", { class: "turn" }, h("b", {}, `${speaker}: `), text.trim());

// What is seen of a recording.
class Panel {
  constructor(root, { stop, discard, close }) {
    this.time = h("span", { class: "time", "aria-hidden": "true" }, clock(0)); // else it is announced every second
    this.level = h("span");
    this.ends = h("button", { type: "button", class: "recorder on", onclick: stop }, "Stop and send");
    this.drops = h("button", { type: "button", onclick: discard }, "Discard");
    this.closes = h("button", { type: "button", hidden: true, onclick: close }, "Close");
    this.title = h("h2", { id: "live-title" }, "Recording");
    this.meter = h("span", { class: "level", "aria-hidden": "true" }, this.level);
    this.said = h("p", { class: "note", role: "status" }, HINT);
    this.hush = h("p", { class: "note", role: "status" });
    this.log = h("div", { class: "spoken", role: "log", "aria-label": "Words of the recording", tabindex: "0" });
    this.shown = new Map(); // paragraphs by item
    const row = h("div", { class: "live-row" }, this.title, this.time, this.meter, this.ends, this.drops, this.closes);
    root.replaceChildren(row, this.said, this.hush, this.log);
    root.hidden = false;
  }

  tick(seconds, peak) {
    this.time.textContent = clock(seconds);
    const share = 1 - (20 * Math.log10(Math.max(peak, 1) / 32768)) / FLOOR_DB;
    this.level.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  }

  silent(yes) {
    const text = yes ? "Nothing is heard. Is the microphone muted?" : "";
    if (this.hush.textContent !== text) this.hush.textContent = text;
  }

  over() {
    this.title.textContent = "Recorded";
    this.said.textContent = "The recording is being sent. Its transcript replaces these words.";
    this.hush.textContent = "";
    this.meter.hidden = this.ends.hidden = this.drops.hidden = true;
    this.closes.hidden = false;
  }

  // -- what `Realtime` tells ----------------------------------------------------------------------------

  state(name, reason) {
    if (this.ends.hidden) return;
    this.said.textContent = name === "live" && !this.shown.size ? HINT : STATES[name](reason);
    this.said.classList.toggle("bad", name !== "live");
  }

  // Screen readers read what was released, and not the tail, which changes.
  begun(item) {
    const made = { words: h("span"), tail: h("span", { class: "tail", "aria-live": "off" }) };
    made.root = h("p", { dir: "auto" }, made.words, made.tail);
    this.shown.set(item, made);
    if (this.said.textContent === HINT) this.said.textContent = "";
    this.#scrolling(() => this.log.append(made.root));
  }

  changed(item) {
    const { root, words, tail } = this.shown.get(item);
    this.#scrolling(() => {
      const before = words.textContent;
      if (item.said.length) words.replaceChildren(...item.said.map(turn));
      else if (item.text.startsWith(before)) words.append(item.text.slice(before.length));
      else words.textContent = item.text;
      tail.textContent = item.tail;
      if (item.failure) root.append(h("span", { class: "note" }, ` (no further words: ${item.failure})`));
      root.hidden = !item.open && !root.textContent.trim();
      root.classList.toggle("tail", item.again);
    });
  }

  dropped(items) {
    for (const item of items) {
      this.shown.get(item).root.remove();
      this.shown.delete(item);
    }
  }

  missing(from, to) {
    const text = `The words from ${clock(from)} to ${clock(to)} are missing here, and will be in the transcript.`;
    this.#scrolling(() => this.log.append(h("p", { class: "note" }, text)));
  }

  // The newest words stay in view, unless the reader has scrolled back.
  #scrolling(change) {
    const { log } = this;
    const below = log.scrollHeight - log.scrollTop - log.clientHeight;
    change();
    if (below < 40) log.scrollTop = log.scrollHeight;
  }
}
