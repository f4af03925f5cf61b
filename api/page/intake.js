// Ways in: drop, choose, record.
import { clock } from "./clock.js";

const element = (id) => document.getElementById(id);

// `take(files)` gets what comes in.
export function intake(take) {
  const zone = element("drop");
  const over = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    zone.classList.add("over");
  };
  // Anywhere on the page: a file that misses the zone would replace the page.
  addEventListener("dragover", over);
  addEventListener("dragleave", (event) => event.relatedTarget || zone.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
  element("files").addEventListener("change", (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    if (files.length) take(files);
  });
  element("record").addEventListener("click", () => recorder.toggle());
  const recorder = new Recorder(element("record"), element("recording"), take);
}

class Recorder {
  constructor(button, said, take) {
    Object.assign(this, { button, said, take, media: null });
    if (!navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) {
      button.disabled = true;
      said.textContent = "Browsers record on https:// and localhost only.";
    }
  }

  async toggle() {
    if (this.media) return this.media.stop();
    this.button.disabled = true;
    try {
      this.#begin(await navigator.mediaDevices.getUserMedia({ audio: true }));
    } catch (error) {
      this.said.textContent =
        error.name === "NotAllowedError" ? "The browser does not let this page hear the microphone." : "There is no microphone.";
    }
    this.button.disabled = false;
  }

  #begin(stream) {
    const parts = [];
    const began = Date.now();
    this.media = new MediaRecorder(stream);
    this.media.ondataavailable = ({ data }) => data.size && parts.push(data);
    this.media.onstop = () => {
      clearInterval(this.timer);
      for (const track of stream.getTracks()) track.stop();
      const type = this.media.mimeType;
      this.media = null;
      this.button.textContent = "Record";
      this.button.classList.remove("live");
      this.said.textContent = "";
      const ending = type.includes("mp4") ? "m4a" : type.includes("ogg") ? "ogg" : "webm";
      const when = new Date(began);
      const two = (n) => String(n).padStart(2, "0");
      const day = `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
      const name = `Recording ${day} ${two(when.getHours())}.${two(when.getMinutes())}.${ending}`;
      this.take([new File(parts, name, { type })]);
    };
    // In pieces, so that a long recording is not lost at once with the tab's memory.
    this.media.start(1000);
    this.button.textContent = "Stop";
    this.button.classList.add("live");
    this.said.textContent = "Recording";
    // Not said every second to those who listen: the clock is for eyes.
    const place = document.createElement("span");
    place.setAttribute("aria-hidden", "true");
    this.said.append(" ", place);
    this.timer = setInterval(() => (place.textContent = clock((Date.now() - began) / 1000)), 250);
  }
}
