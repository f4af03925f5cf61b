// Recordings that the server stores: its jobs.
import { passing, pause, persistently } from "./connection.js";
import { ask, askBlob, askJson, bodyOf, events, key } from "./http.js";
import { upload } from "./uploads.js";

const at = (id) => `v1/jobs/${encodeURIComponent(id)}`;
const audioAt = (id) => `${at(id)}/audio`;
const resultAt = (id, format) => `${at(id)}/result?response_format=${format}`;

const PAGE = 100;
const AGAIN_MS = [250, 500, 1000, 2000, 4000, 8000];
const KEPT_ALIVE = 60000; // letters of a request that browsers send after the page is left
const WHOLE_BYTES = 200e6; // a recording that needs a key is fetched whole before it can be played

export class ServerJobs {
  // The latest `most`, and whether there are more.
  async list(most = PAGE) {
    const found = [];
    for (let after = ""; ; after = found.at(-1).id) {
      const more = after ? `&after=${encodeURIComponent(after)}` : "";
      const page = await askJson(`v1/jobs?limit=${Math.min(PAGE, most - found.length)}${more}`);
      found.push(...page.data);
      if (!page.has_more || !page.data.length || found.length >= most) return { jobs: found, more: page.has_more };
    }
  }

  async create(file, options, { onprogress, ontrouble, signal }) {
    const id = await upload(file, { onprogress, ontrouble, signal });
    const body = new FormData();
    body.append("upload_id", id);
    if (options.language) body.append("language", options.language);
    body.append("task", options.task);
    for (const name of ["terms", "replacements"]) if (options[name].length) body.append(name, JSON.stringify(options[name]));
    if (options.redact) body.append("redact", options.redact);
    if (options.diarize) body.append("diarize", "true");
    if (options.speakers) body.append("num_speakers", options.speakers);
    // If the answer is lost the request is repeated; the idempotency key prevents a second job.
    const headers = { "Idempotency-Key": `page-${id}` };
    try {
      const asked = () => askJson("v1/jobs", { method: "POST", body, headers, signal });
      return await persistently(asked, { signal, ontrouble });
    } catch (error) {
      ask(`v1/uploads/${encodeURIComponent(id)}`, { method: "DELETE" }).catch(() => {}); // nobody will want it
      throw error;
    }
  }

  get(id) {
    return askJson(at(id));
  }

  // {type: "state" | "stage" | "progress" | "segment" | "done", data}, from the beginning, each once; after a broken
  // connection or a restart of the server it continues where it was.
  async *follow(id, signal) {
    let last = null;
    for (let tries = 0; ; tries++) {
      try {
        const headers = last === null ? {} : { "Last-Event-ID": last };
        const open = () => ask(`${at(id)}/events`, { headers, signal });
        for await (const { event, data, id: offset } of events(await persistently(open, { signal }))) {
          tries = 0;
          last = offset ?? last;
          yield { type: event, data: JSON.parse(data) };
          if (event === "done") return;
        }
      } catch (error) {
        if (signal.aborted || !passing(error, tries)) throw error;
      }
      await pause(AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)], signal);
    }
  }

  // The result as it was decoded.
  result(job, signal) {
    const path = `${resultAt(job.id, "transcript")}&corrected=false`;
    return persistently(() => askJson(path, { signal }), { signal });
  }

  // Where words are said in the results behind a job, the latest first: {data: [{job, count, places}], after}.
  search(words, after, signal) {
    return askJson(`v1/jobs/search?${new URLSearchParams({ q: words, ...(after && { after }) })}`, { signal });
  }

  keeper(job) {
    return new ServerKeeper(job.id);
  }

  // `json` is the file that the command writes, with all details; OpenAI's `json` has the fewest.
  file(job, format) {
    return askBlob(resultAt(job.id, format === "json" ? "transcript" : format));
  }

  // The uploaded recording: a URL if the browser can fetch it without a key.
  recording(job) {
    return fetched(audioAt(job.id));
  }

  // All transcripts as files of one format, in a zip.
  archive(format) {
    return fetched(`v1/jobs/archive?response_format=${format}`);
  }

  rename(id, label) {
    const headers = { "Content-Type": "application/json" };
    return askJson(at(id), { method: "PATCH", headers, body: JSON.stringify({ label }) });
  }

  // {src, note, drop}: without a key the player streams it; a player cannot send a key.
  async audio(job, signal) {
    if (!key()) return { src: audioAt(job.id), note: "", drop: () => {} };
    return persistently(() => this.#whole(job, signal), { signal });
  }

  async #whole(job, signal) {
    const answer = await ask(audioAt(job.id), { signal });
    const bytes = Number(answer.headers.get("Content-Length"));
    if (bytes > WHOLE_BYTES) {
      await answer.body.cancel();
      return { src: null, note: `The recording has ${Math.round(bytes / 1e6)} MB, too much to be fetched with a key.`, drop: () => {} };
    }
    const src = URL.createObjectURL(await bodyOf(answer, "blob"));
    return { src, note: "", drop: () => URL.revokeObjectURL(src) };
  }

  // Throws the reason why a streaming player failed; returns if the recording exists.
  async heard(job, signal) {
    const asked = () => ask(audioAt(job.id), { headers: { Range: "bytes=0-0" }, signal });
    const answer = await persistently(asked, { signal });
    await answer.body?.cancel();
  }

  cancel(id) {
    return askJson(`${at(id)}/cancel`, { method: "POST" });
  }

  retry(id) {
    return askJson(`${at(id)}/retry`, { method: "POST" });
  }

  async remove(id) {
    try {
      await ask(at(id), { method: "DELETE" });
    } catch (error) {
      if (error.status !== 404) throw error; // another tab was quicker
    }
  }
}

// Keeps the corrections of a job on the server (see saving.js).
class ServerKeeper {
  constructor(id) {
    Object.assign(this, { path: `${at(id)}/corrections`, etag: "" });
  }

  async load() {
    const found = await this.#heard(() => ask(this.path));
    return found.version ? found : null;
  }

  // A version, or the latest; the next `save` still replaces the one that was loaded.
  version(number) {
    return askJson(number ? `${this.path}?version=${number}` : this.path);
  }

  // If the answer is lost the request is repeated, and then meets the version that it has saved.
  async save(packed) {
    const body = JSON.stringify(packed);
    const headers = { "Content-Type": "application/json", "If-Match": this.etag };
    try {
      const keepalive = body.length < KEPT_ALIVE;
      await this.#heard(() => ask(this.path, { method: "PUT", body, headers, keepalive }));
    } catch (error) {
      if (error.status !== 412) throw error;
      const theirs = await this.load();
      if (!theirs || !equal(theirs, packed)) throw error;
    }
  }

  async #heard(work) {
    const answer = await persistently(work);
    const found = await bodyOf(answer, "json");
    this.etag = answer.headers.get("ETag");
    return found;
  }
}

function equal(one, other) {
  return ["segments", "names"].every((part) => JSON.stringify(one[part]) === JSON.stringify(other[part]));
}

async function fetched(path) {
  return key() ? askBlob(path) : path;
}
