// Recordings that only this tab keeps, for a server without jobs: the text is streamed, then the recording is
// sent again for the times of its words, which a stream does not contain.
import { persistently } from "./connection.js";
import { ask, askJson, events, Refusal } from "./http.js";
import { LocalKeeper } from "./saving.js";

export class TabJobs {
  remembered = false;
  formats = ["json"];

  constructor(model) {
    this.model = model;
    this.held = new Map();
    this.made = 0;
  }

  async list() {
    return { jobs: [...this.held.values()].map(({ job }) => ({ ...job })).reverse(), more: false };
  }

  async create(file, options) {
    const id = `tab-${Date.now()}-${++this.made}`;
    const job = {
      id,
      state: "queued",
      label: file.name,
      created_at: Date.now() / 1000,
      progress: { done_s: 0, total_s: 0 },
      options: { ...options, diarize: options.diarize && options.task === "transcribe" },
      error: null,
      speed: null,
    };
    const one = { job, file, log: [], wake: () => {}, stop: new AbortController(), result: null };
    this.held.set(id, one);
    this.queue = (this.queue || Promise.resolve()).then(() => this.#run(one));
    return job;
  }

  async get(id) {
    return this.#one(id).job;
  }

  async *follow(id, signal) {
    const one = this.#one(id);
    for (let n = 0; !signal.aborted; ) {
      while (n < one.log.length) {
        yield one.log[n];
        if (one.log[n++].type === "done") return;
      }
      await new Promise((resolve) => {
        one.wake = resolve;
        signal.addEventListener("abort", resolve, { once: true });
      });
    }
  }

  async result(job) {
    return this.#one(job.id).result;
  }

  keeper(job) {
    return new LocalKeeper(job.id);
  }

  // The JSON with the corrections.
  async file(job, format, corrected) {
    return new Blob([JSON.stringify(corrected, null, 1)], { type: "application/json" });
  }

  async recording(job) {
    return this.#one(job.id).file;
  }

  async heard() {}

  async audio(job) {
    const { file } = this.#one(job.id);
    const src = URL.createObjectURL(file);
    return { src, note: "", drop: () => URL.revokeObjectURL(src), bytes: () => file.arrayBuffer() };
  }

  async cancel(id) {
    const one = this.#one(id);
    one.stop.abort();
    if (one.job.state === "queued") this.#end(one, "cancelled");
    return one.job;
  }

  async retry(id) {
    const one = this.#one(id);
    Object.assign(one, { log: [], stop: new AbortController(), result: null });
    Object.assign(one.job, { state: "queued", error: null });
    this.queue = this.queue.then(() => this.#run(one));
    return one.job;
  }

  async remove(id) {
    this.held.get(id)?.stop.abort();
    this.held.delete(id);
  }

  #one(id) {
    const one = this.held.get(id);
    if (!one) throw new Refusal("This recording was in another tab, or before a reload: it is gone.", { status: 404 });
    return one;
  }

  async #run(one) {
    if (one.stop.signal.aborted) return;
    const { job, stop } = one;
    job.state = "running";
    this.#say(one, "state", { ...job });
    const started = Date.now();
    try {
      let diarized = null;
      if (job.options.task === "transcribe") {
        diarized = await this.#stream(one);
      }
      const verbose = await this.#post(one, { response_format: "verbose_json" }, askJson);
      one.result = diarized ? [verbose, diarized] : [verbose];
      job.speed = verbose.duration / ((Date.now() - started) / 1000);
      this.#end(one, "succeeded");
    } catch (error) {
      if (stop.signal.aborted) return this.#end(one, "cancelled");
      job.error = { code: error.code || "", message: error.message };
      this.#end(one, "failed");
    }
  }

  // Passes on the text as it arrives, and the segments with speakers if they were requested.
  async #stream(one) {
    const { diarize } = one.job.options;
    const answer = await this.#post(one, { response_format: diarize ? "diarized_json" : "json", stream: "true" });
    const segments = [];
    let k = 0;
    for await (const { event, data } of events(answer)) {
      if (data === "[DONE]") break;
      const body = JSON.parse(data);
      if (event === "error" || body.error) throw new Refusal(body.error.message, { code: body.error.code });
      if (body.type === "transcript.text.delta") {
        this.#say(one, "segment", { k: k++, segments: [{ text: body.delta }] });
      } else if (body.type === "transcript.text.segment") {
        segments.push(body);
      }
    }
    this.#say(one, "timing", {});
    return diarize ? { segments } : null;
  }

  // Waits for a server that is loading. If the server goes away, the request is lost and the user can retry.
  #post(one, fields, asking = ask) {
    const { language, task } = one.job.options;
    const form = new FormData();
    form.append("file", one.file, one.file.name);
    form.append("model", this.model);
    for (const [name, value] of Object.entries(fields)) form.append(name, value);
    if (task === "transcribe") {
      if (language) form.append("language", language);
      if (fields.response_format === "verbose_json") {
        for (const part of one.job.options.words ? ["word", "segment"] : ["segment"]) {
          form.append("timestamp_granularities[]", part);
        }
      }
    }
    const kind = task === "translate" ? "translations" : "transcriptions";
    const { signal } = one.stop;
    const asked = () => asking(`v1/audio/${kind}`, { method: "POST", body: form, signal });
    return persistently(asked, { signal, worth: (error) => error.code === "not_ready" });
  }

  #say(one, type, data) {
    one.log.push({ type, data });
    one.wake();
  }

  #end(one, state) {
    one.job.state = state;
    one.job.finished_at = Date.now() / 1000;
    this.#say(one, "done", { ...one.job });
  }
}
