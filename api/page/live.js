// Recording: words appear while they are spoken, and at the end the recording is sent like a file.
import { button, clock, h } from "./dom.js";
import { Microphone, prevented, RATE } from "./microphone.js";
import { Realtime } from "./realtime.js";

const FLOOR_DB = -60; // of the meter
const QUIET_PEAK = 33; // of 32768, -60 dB
const QUIET_S = 5; // until the page asks whether the microphone is muted

const element = (id) => document.getElementById(id);

export class Live {
  // `take(files)` receives the recording, `settings()` has the `language` that is spoken, or "", whether to
  // tell speakers apart, and the lists of terms and corrections.
  constructor({ take, settings, notices }) {
    Object.assign(this, { take, settings, notices, root: element("live"), button: element("record") });
    this.microphone = this.words = this.panel = null;
    const reason = prevented();
    this.button.disabled = Boolean(reason);
    element("microphone").textContent = reason;
    this.button.addEventListener("click", () => this.#start());
    addEventListener("beforeunload", (event) => this.microphone && event.preventDefault());
    addEventListener("hashchange", () => this.microphone || this.#close());
  }

  async #start() {
    this.button.disabled = true;
    try {
      this.microphone = await Microphone.open({ onpiece: (samples) => this.#heard(samples), onend: () => this.#gone() });
      this.notices.drop("microphone");
      this.#show();
    } catch (error) {
      this.notices.tell("microphone", error.message);
    }
    this.button.disabled = false;
  }

  #show() {
    this.#close();
    this.quiet = 0;
    this.panel = new Panel(this.root, { stop: () => this.#stop(true), discard: () => this.#stop(false), close: () => this.#close() });
    this.words = new Realtime(this.settings(), this.panel);
    this.button.hidden = true;
    this.panel.ends.focus({ preventScroll: true });
    // Phones stop recording when their screen goes off; where the battery is low they refuse.
    this.lock = navigator.wakeLock?.request("screen").catch(() => null);
  }

  #heard(samples) {
    if (!this.panel) return;
    this.words.push(samples);
    const peak = samples.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    this.quiet = peak < QUIET_PEAK ? this.quiet + samples.length : 0;
    this.panel.tick(this.microphone.seconds, peak, this.quiet > QUIET_S * RATE);
  }

  // Recorded, the microphone is given back, and the recording sent unless it is not wanted.
  async #stop(wanted) {
    const { microphone, words, panel } = this;
    if (!microphone) return;
    panel.ends.disabled = panel.drops.disabled = true;
    const file = await microphone.stop();
    this.microphone = null;
    this.lock?.then((lock) => lock?.release());
    this.button.hidden = false;
    this.button.focus({ preventScroll: true });
    if (!wanted) return this.#close();
    words.finish();
    panel.over();
    if (file) this.take([file]);
    else this.notices.tell("microphone", "The microphone recorded nothing.");
  }

  #gone() {
    this.notices.tell("microphone", "The microphone was disconnected. The recording up to then is sent.");
    this.#stop(true);
  }

  #close() {
    this.words?.close();
    this.words = this.panel = null;
    this.root.hidden = true;
    this.root.replaceChildren();
  }
}

const HINT = "Words appear here while you speak.";
const STATES = {
  live: () => HINT,
  waiting: (reason) => `${reason} The recording goes on; its transcript will have all words.`,
  off: (reason) => `No words while you speak: ${reason} The recording goes on, and its transcript is made after it.`,
};

const called = (label) => (label === "unknown" ? "Unknown speaker" : label.replace(/^[A-Z]\d*$/, "Speaker $&"));
const turn = ({ speaker, text }) => h("span", { class: "turn" }, h("b", {}, `${called(speaker)}: `), text.trim());

// What is seen of a recording.
class Panel {
  constructor(root, { stop, discard, close }) {
    this.time = h("span", { class: "time", "aria-hidden": "true" }, clock(0)); // else it is announced every second
    this.level = h("span");
    this.ends = button("Stop and send", stop, { class: "recorder on" });
    this.drops = button("Discard", discard);
    this.closes = button("Close", close, { hidden: true });
    this.title = h("h2", { id: "live-title" }, "Recording");
    this.meter = h("span", { class: "level", "aria-hidden": "true" }, this.level);
    this.said = h("p", { class: "note", role: "status" }, HINT);
    this.hush = h("p", { class: "note", role: "status", hidden: true }, "Nothing is heard. Is the microphone muted?");
    this.log = h("div", { class: "spoken", role: "log", "aria-label": "Words of the recording", tabindex: "0" });
    this.shown = new Map(); // paragraphs by item
    const row = h("div", { class: "live-row" }, this.title, this.time, this.meter, this.ends, this.drops, this.closes);
    root.replaceChildren(row, this.said, this.hush, this.log);
    root.hidden = false;
  }

  tick(seconds, peak, silent) {
    this.time.textContent = clock(seconds);
    const share = 1 - (20 * Math.log10(Math.max(peak, 1) / 32768)) / FLOOR_DB;
    this.level.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
    this.hush.hidden = !silent;
  }

  over() {
    this.title.textContent = "Recorded";
    this.said.textContent = "The recording is being sent. Its transcript replaces these words.";
    this.hush.hidden = this.meter.hidden = this.ends.hidden = this.drops.hidden = true;
    this.closes.hidden = false;
  }

  // -- what `Realtime` tells ----------------------------------------------------------------------------

  state(name, reason) {
    if (this.ends.hidden) return;
    this.said.textContent = STATES[name](reason);
    this.said.classList.toggle("bad", name !== "live");
  }

  // Screen readers read what was released, and not the tail, which changes.
  begun(item) {
    const made = { words: h("span"), tail: h("span", { class: "tail quiet", "aria-live": "off" }) };
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
    });
  }

  // The newest words stay in view, unless the reader has scrolled back.
  #scrolling(change) {
    const { log } = this;
    const below = log.scrollHeight - log.scrollTop - log.clientHeight;
    change();
    if (below < 40) log.scrollTop = log.scrollHeight;
  }
}
