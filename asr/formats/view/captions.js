// The picture of a video, or a dark ground, with the text of the moment on it.
import { lastUpTo } from "./model.js";
import { h } from "./dom.js";

// `media` is the player's element. Returns {root, show(cues), at(seconds), turn(on)}.
export function captions(media) {
  const text = h("p", { class: "caption", dir: "auto" });
  const full = h("button", { type: "button", class: "full", onclick: () => whole() }, "Full screen");
  const root = h("div", { class: "stage", hidden: true }, media, text, full);
  let [shown, starts, now] = [[], [], -1];
  media.addEventListener("loadedmetadata", () => root.classList.toggle("pictured", media.videoWidth > 0));
  media.addEventListener("click", () => (media.paused ? media.play().catch(() => {}) : media.pause()));
  full.hidden = !root.requestFullscreen;
  const whole = () => (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen().catch(() => {}));
  const at = (seconds) => {
    const n = lastUpTo(starts, 1000 * seconds);
    const cue = shown[n] && 1000 * seconds < shown[n].end ? n : -1;
    if (cue === now) return;
    now = cue;
    text.textContent = cue < 0 ? "" : `${shown[cue].speaker ? `${shown[cue].speaker}: ` : ""}${shown[cue].text}`;
  };
  return {
    root,
    at,
    show(cues) {
      [shown, starts, now] = [cues, cues.map(({ start }) => start), -2];
      at(media.currentTime || 0);
    },
    turn(on) {
      root.hidden = !on;
    },
  };
}
