// The player: a media element with the browser's controls, and where it is.
import { h } from "./dom.js";

const STEP_S = 3;

// With `src` null there is nothing to play, and `note` is the reason. `ontime(seconds, playing)` is called with the
// position. `onbroken` is awaited if the recording cannot be loaded: it throws the reason.
export class Player {
  constructor({ src = null, note = "" }) {
    this.ontime = () => {};
    this.onbroken = async () => {};
    this.media = h("audio", { controls: true, preload: "metadata" });
    this.note = h("p", { class: "note", role: "status" });
    this.root = h("section", { class: "player", "aria-label": "Player" }, this.media, this.note);
    this.media.addEventListener("timeupdate", () => this.#moved());
    this.media.addEventListener("play", () => this.#frame());
    this.media.addEventListener("error", () => this.#broken());
    this.load(src, note);
  }

  load(src, note = "") {
    this.media.hidden = !src;
    this.#say(note);
    if (src) this.media.src = src;
  }

  toggle() {
    if (this.media.paused) this.#play();
    else this.media.pause();
  }

  // Goes there and plays, after `wait` ms if nothing else is asked for meanwhile; never if it is null.
  seek(seconds, wait = 0) {
    clearTimeout(this.starting);
    if (this.media.hidden) return;
    this.media.currentTime = seconds;
    if (wait !== null) this.starting = setTimeout(() => this.#play(), wait);
  }

  pause() {
    clearTimeout(this.starting);
    this.media.pause();
  }

  back() {
    this.seek(Math.max(0, this.media.currentTime - STEP_S), null);
  }

  stop() {
    this.pause();
    this.media.removeAttribute("src");
    this.media.load();
  }

  #say(note) {
    this.note.textContent = note;
    this.note.hidden = !note;
  }

  #play() {
    // Other failures are `error` events of the element.
    this.media.play().catch((error) => error.name === "NotAllowedError" && this.#say("The browser wants a click before it plays."));
  }

  // The element does not distinguish an unknown format from a broken connection.
  async #broken() {
    const src = this.media.getAttribute("src");
    if (!src) return;
    try {
      await this.onbroken();
      throw new Error("This browser cannot play the recording.");
    } catch (error) {
      if (this.media.getAttribute("src") === src) this.load(null, error.message);
    }
  }

  #frame() {
    this.#moved();
    if (!this.media.paused) requestAnimationFrame(() => this.#frame());
  }

  #moved() {
    this.ontime(this.media.currentTime, !this.media.paused);
  }
}
