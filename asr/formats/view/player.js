// The player: play, seek, speed, on a media element. The element's own controls look different in every
// browser, and do not know the length of a recording that was made in a browser.
import { clock } from "./clock.js";
import { h } from "./dom.js";

const STEP_S = 3;

// With `src` null there is nothing to play, and `note` is the reason. `ontime(seconds, playing)` is called
// with the position. `onbroken` is awaited if the recording cannot be loaded: it throws the reason, or
// returns another URL.
export class Player {
  constructor(duration, { src = null, note = "" }) {
    this.duration = duration;
    this.ontime = () => {};
    this.onbroken = async () => {};
    this.again = false; // a second attempt after a failure is running
    this.pending = null;
    this.media = h("video", { preload: "metadata", playsinline: true }); // plays sound as well
    this.button = h("button", { type: "button", class: "play", "aria-label": "Play", onclick: () => this.toggle() });
    this.range = h("input", {
      type: "range", min: 0, max: Math.max(duration, 0.1), step: 0.1, value: 0, "aria-label": "Position",
      oninput: () => this.seek(Number(this.range.value), false),
    });
    this.place = h("span", { class: "place" });
    const speeds = ["0.75", "1", "1.25", "1.5", "2"].map((speed) =>
      h("option", { value: speed, selected: speed === "1" }, `${speed}×`),
    );
    this.speed = h(
      "select",
      { "aria-label": "Speed", onchange: () => (this.media.playbackRate = Number(this.speed.value)) },
      speeds,
    );
    this.note = h("p", { class: "note", role: "status" }, note);
    this.note.hidden = !note;
    this.root = h(
      "section",
      { class: "player", "aria-label": "Player" },
      (this.controls = h("div", { class: "controls" }, this.button, this.range, this.place, this.speed)),
      this.note,
    );
    for (const name of ["play", "pause", "ended"]) this.media.addEventListener(name, () => this.#turned());
    this.media.addEventListener("timeupdate", () => this.#moved());
    this.media.addEventListener("loadedmetadata", () => this.#begin());
    this.media.addEventListener("error", () => this.#broken());
    this.load(src, note);
    this.#moved();
  }

  load(src, note = "") {
    for (const part of [this.button, this.range, this.speed]) part.disabled = !src;
    this.say(note);
    if (src) this.media.src = src;
  }

  say(note) {
    this.note.textContent = note;
    this.note.hidden = !note;
  }

  toggle() {
    if (this.media.paused) this.#play();
    else this.media.pause();
  }

  seek(seconds, play = true) {
    if (this.button.disabled) return;
    if (this.media.readyState > 0) this.media.currentTime = seconds;
    else this.pending = seconds; // until the browser has loaded the metadata
    if (play) this.#play();
    this.#moved();
  }

  step(direction) {
    const at = this.pending ?? this.media.currentTime;
    this.seek(Math.min(Math.max(at + direction * STEP_S, 0), this.duration), false);
  }

  stop() {
    this.media.pause();
    this.media.removeAttribute("src");
    this.media.load();
  }

  #play() {
    if (this.button.disabled) return;
    // Other failures are `error` events of the element.
    this.media.play().catch((error) => error.name === "NotAllowedError" && this.say("The browser wants a click before it plays."));
  }

  #begin() {
    if (this.pending !== null) this.media.currentTime = this.pending;
    this.pending = null;
    this.again = false;
    this.media.playbackRate = Number(this.speed.value);
  }

  // The element does not distinguish an unknown format from a broken connection.
  async #broken() {
    const src = this.media.getAttribute("src");
    if (!src) return;
    const damaged = this.media.error?.code === MediaError.MEDIA_ERR_DECODE;
    const [at, playing, again] = [this.pending ?? this.media.currentTime, !this.media.paused, this.again];
    try {
      this.say("The recording is out of reach.");
      await this.onbroken();
      if (this.media.getAttribute("src") !== src) return; // replaced in the meantime
      if (again || damaged) throw new Error("This browser cannot play the recording.");
      this.again = true;
      this.pending = at;
      this.load(src);
      if (playing) this.#play();
    } catch (error) {
      if (this.media.getAttribute("src") === src) this.#refuse(error.message);
    }
  }

  #refuse(reason) {
    for (const part of [this.button, this.range, this.speed]) part.disabled = true;
    this.say(reason);
  }

  #turned() {
    const playing = !this.media.paused;
    this.button.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.button.classList.toggle("playing", playing);
    if (playing) requestAnimationFrame(() => this.#frame());
  }

  #frame() {
    if (this.media.paused) return;
    this.#moved();
    requestAnimationFrame(() => this.#frame());
  }

  #moved() {
    const at = this.pending ?? this.media.currentTime;
    this.range.value = at;
    this.range.setAttribute("aria-valuetext", `${clock(at)} of ${clock(this.duration)}`);
    this.place.textContent = `${clock(at)} / ${clock(this.duration)}`;
    this.ontime(at, !this.media.paused);
  }
}
