// Recordings that the server keeps: its jobs.
import { ask, events, key, Refusal, upload } from "./http.js";

const PAGE = 100;
const MOST = 500;
const AGAIN_MS = [500, 1000, 2000, 4000, 8000];
const WHOLE_BYTES = 200e6; // a recording that needs a key is fetched whole before it can be played

export class ServerJobs {
  remembered = true;
  formats = ["json", "verbose_json", "diarized_json", "rttm"];

  async list() {
    const found = [];
    for (let after = ""; found.length < MOST; ) {
      const more = after ? `&after=${encodeURIComponent(after)}` : "";
      const page = await (await ask(`/v1/jobs?limit=${PAGE}${more}`)).json();
      found.push(...page.data);
      if (!page.has_more || !page.data.length) break;
      after = page.data.at(-1).id;
    }
    return found;
  }

  create(file, options, { onprogress, signal }) {
    const form = new FormData();
    form.append("file", file, file.name);
    if (options.language) form.append("language", options.language);
    form.append("task", options.task);
    if (options.diarize) {
      form.append("diarize", "true");
      if (options.speakers) form.append("num_speakers", options.speakers);
    }
    return upload("/v1/jobs", form, { onprogress, signal });
  }

  async get(id) {
    return (await ask(at(id))).json();
  }

  // {type: "state" | "progress" | "segment" | "done", data}, from the beginning and once each; a broken
  // connection goes on where it was.
  async *follow(id, signal) {
    let last = null;
    for (let tries = 0; ; tries++) {
      try {
        const headers = last === null ? {} : { "Last-Event-ID": last };
        for await (const { event, data, id: offset } of events(await ask(`${at(id)}/events`, { headers, signal }))) {
          tries = 0;
          last = offset ?? last;
          yield { type: event, data: JSON.parse(data) };
          if (event === "done") return;
        }
      } catch (error) {
        if (signal.aborted || (error.status >= 400 && error.status < 500)) throw error;
        if (tries >= AGAIN_MS.length) throw new Refusal("The connection to the server is lost. Reload to go on.");
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)]));
      if (signal.aborted) return;
    }
  }

  // What `modelOf` takes.
  async result(job) {
    return [await (await ask(resultAt(job.id, "transcript"))).json()];
  }

  // `json` is the file that the command writes, which says most; the contract's own says least.
  async file(job, format) {
    return (await ask(resultAt(job.id, format === "json" ? "transcript" : format))).blob();
  }

  // {src, note, drop}: without a key the player takes what it needs; a player cannot send one.
  async audio(job) {
    if (!key()) return { src: `${at(job.id)}/audio`, note: "", drop: () => {} };
    const answer = await ask(`${at(job.id)}/audio`);
    const bytes = Number(answer.headers.get("Content-Length"));
    if (bytes > WHOLE_BYTES) {
      await answer.body.cancel();
      const note = `The recording has ${Math.round(bytes / 1e6)} MB, too much to fetch with a key.`;
      return { src: null, note, drop: () => {} };
    }
    const src = URL.createObjectURL(await answer.blob());
    return { src, note: "", drop: () => URL.revokeObjectURL(src) };
  }

  async cancel(id) {
    return (await ask(`${at(id)}/cancel`, { method: "POST" })).json();
  }

  async retry(id) {
    return (await ask(`${at(id)}/retry`, { method: "POST" })).json();
  }

  async diarize(id, speakers) {
    const form = new FormData();
    if (speakers) form.append("num_speakers", speakers);
    return (await ask(`${at(id)}/diarize`, { method: "POST", body: form })).json();
  }

  async remove(id) {
    await ask(at(id), { method: "DELETE" });
  }
}

function at(id) {
  return `/v1/jobs/${encodeURIComponent(id)}`;
}

function resultAt(id, format) {
  return `${at(id)}/result?response_format=${format}`;
}
