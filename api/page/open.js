// The recording that is open: its text while it comes, the viewer once it is there.
import { h } from "./dom.js";
import { lasting } from "./clock.js";
import { Refusal } from "./http.js";
import { busy, nameOf, progressOf, STATES } from "./list.js";
import { modelOf } from "./model.js";
import { viewer } from "./viewer.js";

export class Open {
  // `changed(job)` hears what becomes of it; `act` as in the list, and `act.retry(job)`.
  constructor(root, store, job, { changed, act }) {
    Object.assign(this, { root, store, job, changed, act });
    this.stop = new AbortController();
    this.shown = null;
    this.sound = null;
    this.title = h("h1", { dir: "auto", tabindex: "-1" }, nameOf(job));
    this.said = h("p", { class: "progress", role: "status" });
    this.bar = h("progress", { max: 1, "aria-label": "Progress" });
    this.actions = h("div", { class: "actions" });
    this.text = h("p", { class: "live", dir: "auto" });
    this.body = h("div", { class: "body" }, this.said, this.bar, this.text);
    root.replaceChildren(
      h("a", { class: "back", href: "#" }, "All recordings"),
      h("div", { class: "head-row" }, this.title, this.actions),
      this.body,
    );
    this.#tell();
  }

  // Runs until the recording is shown, has failed, or another is opened.
  async run() {
    try {
      if (busy(this.job)) await this.#follow();
      if (this.stop.signal.aborted) return;
      this.#tell();
      if (this.job.state === "succeeded") await this.#show();
    } catch (error) {
      if (this.stop.signal.aborted) return;
      this.#fail(error.message);
      if (error.needsKey || !(error instanceof Refusal)) throw error;
    }
  }

  close() {
    this.stop.abort();
    this.shown?.player.stop();
    this.sound?.drop();
  }

  async #follow() {
    let timing = false;
    for await (const { type, data } of this.store.follow(this.job.id, this.stop.signal)) {
      if (this.stop.signal.aborted) return;
      if (type === "segment") this.#append(data.segments.map((segment) => segment.text).join(""));
      else if (type === "progress") this.job = { ...this.job, progress: data };
      else if (type === "timing") timing = true;
      else if (type === "state" || type === "done") this.job = data;
      this.changed(this.job);
      this.#tell(timing);
    }
  }

  #append(text) {
    this.text.append(this.text.hasChildNodes() ? text : text.trimStart());
  }

  #tell(timing = false) {
    const { job } = this;
    const { done_s: done, total_s: total } = job.progress || {};
    const share = progressOf(job);
    const running = () => {
      if (timing) return "The text is there; now the times of its words";
      if (share === null) return "Transcribing";
      if (share < 1) return `Transcribing: ${lasting(done)} of ${lasting(total)}`;
      return job.options?.diarize ? "The text is there; now the speakers" : "The text is there; now the last of it";
    };
    const told = {
      sending: "Sending the recording",
      queued: "Waiting for its turn",
      running: running(),
      succeeded: "Fetching the transcript",
      failed: "",
      cancelled: "Cancelled.",
    };
    // Read aloud only when the kind of news changes, not with every second of audio.
    this.said.setAttribute("aria-live", this.told === job.state + timing ? "off" : "polite");
    this.told = job.state + timing;
    this.said.textContent = told[job.state] ?? STATES[job.state] ?? job.state;
    this.bar.hidden = !busy(job);
    if (share === null || share === 1) this.bar.removeAttribute("value"); // nobody knows how long it takes
    else this.bar.value = share;
    this.#offer();
    if (job.state === "failed") this.#fail(job.error?.message || "The server does not say why.");
  }

  #offer() {
    const { job } = this;
    const again = ["failed", "cancelled"].includes(job.state);
    const speakers = job.state === "succeeded" && this.store.remembered;
    const wanted = [again && "Retry", speakers && "Find speakers", busy(job) ? "Cancel" : "Delete"].filter(Boolean);
    if (wanted.join() === this.offered) return;
    this.offered = wanted.join();
    this.actions.replaceChildren(
      ...wanted.map((name) => h("button", { type: "button", onclick: () => this.act[ACTS[name]](this.job) }, name)),
    );
  }

  async #show() {
    const [data, diarized] = await this.store.result(this.job);
    const model = modelOf(data, diarized || null);
    if (this.stop.signal.aborted) return;
    if (this.job.speed && !model.figures.wall_s) model.figures = { ...model.figures, wall_s: model.duration / this.job.speed };
    this.shown = viewer(model, {
      title: nameOf(this.job),
      key: this.job.id,
      note: "Fetching the recording",
      downloads: this.store.formats
        .filter((format) => model.speakers.length || !["diarized_json", "rttm"].includes(format))
        .map((format) => [format, () => this.store.file(this.job, format)]),
    });
    this.body.replaceChildren(this.shown.root);
    try {
      this.sound = await this.store.audio(this.job);
      if (this.stop.signal.aborted) return this.sound.drop();
      this.shown.player.load(this.sound.src, this.sound.note);
    } catch (error) {
      this.shown.player.load(null, `The recording cannot be played: ${error.message}`);
    }
  }

  #fail(message) {
    this.bar.hidden = true;
    this.said.textContent = "";
    this.body.replaceChildren(
      h("div", { class: "failure", role: "alert" }, h("h2", {}, "This did not work"), h("p", { dir: "auto" }, message)),
      this.text,
    );
  }
}

const ACTS = { Retry: "retry", "Find speakers": "diarize", Cancel: "cancel", Delete: "remove" };
