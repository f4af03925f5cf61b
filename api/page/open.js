// The open recording: its text while it is transcribed, then the viewer.
import { button, clock, h } from "./dom.js";
import { Refusal } from "./http.js";
import { busy, filled, nameOf, progressOf } from "./list.js";
import { Viewer } from "./viewer.js";

export const FILES = ["docx", "md", "txt", "srt", "vtt", "json", "rttm"];

export class Open {
  // `heard(job)` hears what becomes of it; `act` as in the list, `act.retry(job)`,
  // `act.rename(job)`, `act.remember(corrections)` and `act.languages`.
  constructor(root, store, job, { heard, act }) {
    Object.assign(this, { store, job, heard, act });
    this.stop = new AbortController();
    this.shown = null;
    this.sound = null;
    this.following = busy(job);
    this.title = h("h1", { dir: "auto", tabindex: "-1" }, nameOf(job));
    this.said = h("p", { class: "progress", role: "status" });
    this.bar = h("progress", { max: 1, "aria-label": "Progress" });
    this.actions = h("div", { class: "actions" });
    this.text = h("p", { class: "running-text", dir: "auto" });
    this.body = h("div", { class: "body" }, this.said, this.bar, this.text);
    const back = h("a", { class: "back", href: "#" }, "All recordings");
    document.title = `${nameOf(job)} · forescribe`;
    root.replaceChildren(back, h("div", { class: "head-row" }, this.title, this.actions), this.body);
    this.#tell();
  }

  // Runs until the recording is shown, has failed, is deleted, or another is opened.
  async run() {
    try {
      if (this.following) await this.#follow();
      this.following = false;
      if (this.stop.signal.aborted) return;
      this.#tell();
      if (this.job.state === "succeeded") await this.#show();
    } catch (error) {
      if (this.stop.signal.aborted) return;
      this.following = false;
      this.#fail(error.message);
      if (error.needsKey || !(error instanceof Refusal)) throw error;
    }
  }

  // It has another name.
  call(job) {
    if (job.id !== this.job.id) return;
    this.job = { ...this.job, label: job.label };
    this.title.textContent = nameOf(job);
    document.title = `${nameOf(job)} · forescribe`;
    if (this.shown) this.shown.title = nameOf(job);
  }

  // Shows the place that a search has found ({find, at}), and stands there.
  goTo(place) {
    this.place = place;
    if (!place || !this.shown) return;
    place.at = this.shown.seeking.show(place.find, place.at);
    this.shown.player.seek(place.at, null);
  }

  close() {
    this.stop.abort();
    this.shown?.close();
    this.sound?.drop();
  }

  async #follow() {
    for await (const { type, data } of this.store.follow(this.job.id, this.stop.signal)) {
      if (this.stop.signal.aborted) return;
      if (type === "segment") this.#append(data.segments.map((segment) => segment.text).join(""));
      else if (type === "progress") this.job = { ...this.job, progress: data };
      else if (type === "stage") this.job = { ...this.job, ...data };
      else if (type === "state" || type === "done") this.job = data;
      this.heard(this.job);
      this.#tell();
    }
  }

  #append(text) {
    this.text.append(this.text.hasChildNodes() ? text : text.trimStart());
  }

  #tell() {
    const { job, act } = this;
    const share = progressOf(job);
    const { done_s: done, total_s: total } = job.progress || {};
    const length = total ? ` ${clock(total)} of audio` : "";
    const transcribing = share === null ? `Transcribing${length}; text comes in parts of a few minutes` : `Transcribing: ${clock(done)} of ${clock(total)}`;
    const stages = { reading: `Reading${length}`, transcribing, diarizing: "Text complete; finding speakers", finishing: "Text complete; finishing" };
    const told = { queued: "Waiting in the queue", running: "Working", succeeded: "Fetching the transcript", cancelled: "Cancelled." };
    // Screen readers announce changes of state only, not every second of progress.
    const news = job.stage || job.state;
    this.said.setAttribute("aria-live", this.news === news ? "off" : "polite");
    this.said.textContent = stages[job.stage] || told[job.state] || "";
    this.news = news;
    this.bar.hidden = job.state !== "running";
    filled(this.bar, share);
    if (this.told === job.state) return;
    this.told = job.state;
    const retry = ["failed", "cancelled"].includes(job.state) ? button("Retry", () => act.retry(this.job), { class: "main" }) : [];
    const end = busy(job) ? button("Cancel", () => act.cancel(this.job)) : button("Delete", () => act.remove(this.job), { class: "danger" });
    this.actions.replaceChildren(...[retry, button("Rename", () => act.rename(this.job)), end].flat());
    if (job.state === "failed") this.#fail(job.error?.message || "The server gave no reason.");
  }

  async #show() {
    const { job, store } = this;
    const { signal } = this.stop;
    const data = await store.result(job, signal);
    const keeper = store.keeper(job); // which saves what is left behind another recording
    const kept = await keeper.load();
    if (signal.aborted) return;
    const formats = FILES.filter((format) => format !== "rttm" || data.segments.some((segment) => segment.speaker));
    const files = formats.map((format) => [format, () => store.file(job, format)]);
    const downloads = [...files, ["recording", () => store.recording(job)]];
    this.shown = new Viewer(data, { title: nameOf(job), keeper, kept, remember: this.act.remember, languages: this.act.languages, note: "Fetching the recording", downloads });
    this.shown.edits.listeners.push(() => this.heard(this.job));
    this.shown.player.onbroken = () => store.heard(job, signal);
    this.body.replaceChildren(this.shown.root);
    this.goTo(this.place);
    try {
      this.sound = await store.audio(job, signal);
      if (signal.aborted) this.sound.drop();
      else this.shown.player.load(this.sound.src, this.sound.note);
      if (this.place) this.shown.player.seek(this.place.at, null);
    } catch (error) {
      if (!signal.aborted) this.shown.player.load(null, `The recording cannot be played: ${error.message}`);
    }
  }

  #fail(message) {
    this.bar.hidden = true;
    this.said.textContent = "";
    const icon = h("span", { class: "icon", "aria-hidden": "true" }, "!");
    const failure = h("div", {}, h("h2", {}, "Transcription failed"), h("p", { dir: "auto" }, message));
    this.body.replaceChildren(h("div", { class: "failure", role: "alert" }, icon, failure), this.text);
  }
}
