// The open recording: its text while it is transcribed, then the viewer.
import { MOST_S } from "./band.js";
import { h } from "./dom.js";
import { lasting } from "./clock.js";
import { Refusal } from "./http.js";
import { busy, nameOf, progressOf, STATES } from "./list.js";
import { closing } from "./menu.js";
import { Viewer } from "./viewer.js";

export class Open {
  // `heard(job)` hears what becomes of it; `act` as in the list, and `act.retry(job)`,
  // `act.diarize(job, speakers)`.
  constructor(root, store, job, { heard, act, settings }) {
    Object.assign(this, { root, store, job, heard, act, settings });
    this.stop = new AbortController();
    this.shown = null;
    this.sound = null;
    this.following = busy(job);
    this.lost = false; // it does not exist on the server any more
    this.title = h("h1", { dir: "auto", tabindex: "-1" }, nameOf(job));
    this.said = h("p", { class: "progress", role: "status" });
    this.bar = h("progress", { max: 1, "aria-label": "Progress" });
    this.actions = h("div", { class: "actions" });
    this.text = h("p", { class: "running-text", dir: "auto" });
    this.body = h("div", { class: "body" }, this.said, this.bar, this.text);
    root.replaceChildren(
      h("a", { class: "back", href: "#" }, "All recordings"),
      h("div", { class: "head-row" }, this.title, this.actions),
      this.body,
    );
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
      if (this.following && error.status === 404) {
        this.lost = true;
        return;
      }
      this.following = false;
      this.#fail(error.message);
      if (error.needsKey || !(error instanceof Refusal)) throw error;
    }
  }

  close() {
    this.stop.abort();
    this.shown?.close();
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
      this.heard(this.job);
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
      if (timing) return "Text complete; timing the words";
      if (share === null) return "Transcribing";
      if (share < 1) return `Transcribing: ${lasting(done)} of ${lasting(total)}`;
      return job.options?.diarize ? "Text complete; finding speakers" : "Text complete; finishing";
    };
    const told = {
      queued: "Waiting in the queue",
      running: running(),
      succeeded: "Fetching the transcript",
      failed: "",
      cancelled: "Cancelled.",
    };
    // Screen readers announce changes of state only, not every second of progress.
    this.said.setAttribute("aria-live", this.told === job.state + timing ? "off" : "polite");
    this.told = job.state + timing;
    this.said.textContent = told[job.state] ?? STATES[job.state] ?? job.state;
    this.bar.hidden = job.state !== "running";
    if (share === null || share === 1) this.bar.removeAttribute("value"); // the duration is unknown
    else this.bar.value = share;
    this.#offer();
    if (job.state === "failed") this.#fail(job.error?.message || "The server gave no reason.");
  }

  #offer() {
    const { job, store, act } = this;
    const button = (name, run, kind = "") => h("button", { type: "button", class: kind, onclick: () => run(this.job) }, name);
    const ended = ["failed", "cancelled"].includes(job.state);
    const made = [ended && "retry", job.state === "succeeded" && store.remembered && "speakers", busy(job) ? "cancel" : "delete"];
    if (made.join() === this.offered) return;
    this.offered = made.join();
    const makers = {
      retry: () => button("Retry", act.retry, "main"),
      speakers: () => this.#speakers(),
      cancel: () => button("Cancel", act.cancel),
      delete: () => button("Delete", act.remove, "danger"),
    };
    this.actions.replaceChildren(...made.filter(Boolean).map((name) => makers[name]()));
  }

  #speakers() {
    const count = h("input", { type: "number", min: 1, max: 100, inputmode: "numeric", placeholder: "unknown", value: this.settings.get().speakers });
    const find = (event) => {
      event.preventDefault();
      if (count.reportValidity()) this.act.diarize(this.job, count.value, this.shown?.edits.changed || this.shown?.keeper.history.length > 0);
    };
    const form = h(
      "form",
      { onsubmit: find },
      h("label", {}, "Number of speakers ", count),
      h("p", { class: "note" }, "The text stays; only the speakers are found again."),
      h("button", { class: "main", type: "submit" }, "Find speakers"),
    );
    const root = h("details", { class: "menu" }, h("summary", {}, "Find speakers"), form);
    closing(root);
    return root;
  }

  async #show() {
    const { signal } = this.stop;
    const { job, store } = this;
    const [data, diarized] = await store.result(job, signal);
    const keeper = store.keeper(job, signal);
    const kept = await keeper.load();
    if (signal.aborted) return;
    const figures = data.speculation ? "speculation" : "stats";
    if (job.speed && !data[figures]?.wall_s) data[figures] = { ...data[figures], wall_s: data.duration / job.speed };
    const spoken = Boolean(diarized) || data.segments.some((segment) => segment.speaker);
    this.shown = new Viewer(data, diarized || null, {
      title: nameOf(job),
      keeper,
      kept,
      note: "Fetching the recording",
      downloads: [
        ...store.formats
          .filter((format) => spoken || !["diarized_json", "rttm"].includes(format))
          .map((format) => [format, () => store.file(job, format, this.shown.corrected())]),
        ["recording", () => store.recording(job)],
      ],
    });
    this.shown.edits.listeners.push(() => this.heard(this.job));
    this.shown.player.onbroken = () => this.store.heard(this.job, signal);
    this.body.replaceChildren(this.shown.root);
    try {
      this.sound = await this.store.audio(this.job, signal);
      if (signal.aborted) return this.sound.drop();
      this.shown.player.load(this.sound.src, this.sound.note);
      const bytes = data.duration <= MOST_S && (await this.sound.bytes());
      if (signal.aborted) return;
      if (bytes) await this.shown.band.hear(bytes);
      else if (store.peaks) this.shown.band.wave(await store.peaks(job, signal));
    } catch (error) {
      if (!signal.aborted && !this.sound) this.shown.player.load(null, `The recording cannot be played: ${error.message}`);
    }
  }

  #fail(message) {
    this.bar.hidden = true;
    this.said.textContent = "";
    this.body.replaceChildren(
      h(
        "div",
        { class: "failure", role: "alert" },
        h("span", { class: "icon", "aria-hidden": "true" }, "!"),
        h("div", {}, h("h2", {}, "Transcription failed"), h("p", { dir: "auto" }, message)),
      ),
      this.text,
    );
  }
}
