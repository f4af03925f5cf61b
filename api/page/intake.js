// Adding recordings: drop, choose, record.
import { clock } from "./clock.js";

const element = (id) => document.getElementById(id);

const holdsFiles = (event) => [...event.dataTransfer.types].includes("Files");

// `take(files)` receives the files, `fail(text)` the reason why the microphone cannot be used.
export function intake(take, fail) {
  const zone = element("drop");
  // Anywhere on the page, because a file dropped outside the zone would replace the page.
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    zone.classList.add("over");
  });
  addEventListener("dragleave", (event) => event.relatedTarget || zone.classList.remove("over"));
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
  element("files").addEventListener("change", (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    if (files.length) take(files);
  });
  const recorder = new Recorder(element("record"), element("discard"), element("microphone"), take, fail);
  element("record").addEventListener("click", () => recorder.toggle());
  element("discard").addEventListener("click", () => recorder.discard());
  addEventListener("beforeunload", (event) => recorder.media && event.preventDefault());
}

class Recorder {
  constructor(button, away, said, take, fail) {
    Object.assign(this, { button, away, said, take, fail, media: null, wanted: true });
    if (!navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) {
      button.disabled = true;
      said.textContent = "Browsers allow recording only on https:// and localhost.";
    }
  }

  async toggle() {
    if (this.media) return this.media.stop();
    this.button.disabled = true;
    try {
      this.#begin(await navigator.mediaDevices.getUserMedia({ audio: true }));
    } catch (error) {
      const refused = error.name === "NotAllowedError";
      this.fail(refused ? "The browser does not allow this page to use the microphone." : "No microphone was found.");
    }
    this.button.disabled = false;
  }

  discard() {
    this.wanted = false;
    this.media?.stop();
    this.button.focus();
  }

  #begin(stream) {
    const parts = [];
    const began = new Date();
    this.media = new MediaRecorder(stream);
    this.media.ondataavailable = ({ data }) => data.size && parts.push(data);
    this.media.onstop = () => {
      clearInterval(this.timer);
      for (const track of stream.getTracks()) track.stop();
      const type = this.media.mimeType;
      const { wanted } = this;
      this.media = null;
      this.#turn(false);
      if (wanted && parts.length) this.take([new File(parts, nameOfRecording(began, type), { type })]);
      else if (wanted) this.fail("The microphone recorded nothing.");
    };
    // In pieces, so that the browser can move a long recording out of memory.
    this.media.start(1000);
    this.#turn(true);
    // Hidden from screen readers, which would announce it every second.
    const place = document.createElement("span");
    place.setAttribute("aria-hidden", "true");
    this.said.append(" ", place);
    this.timer = setInterval(() => (place.textContent = clock((Date.now() - began) / 1000)), 250);
  }

  #turn(on) {
    this.wanted = true;
    this.button.textContent = on ? "Stop and send" : "Record";
    this.button.classList.toggle("on", on);
    this.away.hidden = !on;
    element("choose").hidden = on;
    this.said.textContent = on ? "Recording" : "";
  }
}

function nameOfRecording(when, type) {
  const ending = type.includes("mp4") ? "m4a" : type.includes("ogg") ? "ogg" : "webm";
  const two = (n) => String(n).padStart(2, "0");
  const day = `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  return `Recording ${day} ${two(when.getHours())}.${two(when.getMinutes())}.${ending}`;
}
