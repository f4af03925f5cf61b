// Recordings that are being sent, one after the other, so that the first is transcribed while the next is sent.
// If the server is away, loading or full, they wait and show the reason.
import { Refusal } from "./http.js";
import { check } from "./uploads.js";

export class Outbox {
  // `onchange()` after each change, `onjob(job, one)`, `onerror(error, one)`.
  constructor(store, { onchange, onjob, onerror }) {
    Object.assign(this, { store, onchange, onjob, onerror });
    this.waiting = [];
    this.line = Promise.resolve();
    this.made = 0;
    addEventListener("beforeunload", (event) => this.waiting.length && event.preventDefault());
  }

  add(files, options, batch) {
    const asked = files.map((file) => ({
      id: `sending-${++this.made}`,
      state: "sending",
      label: file.name,
      created_at: Date.now() / 1000,
      sent: null, // its turn has not come
      trouble: "",
      stop: new AbortController(),
      file,
      size: file.size, // now: of a file that is removed browsers say 0 later
      options,
      batch, // what was chosen together
    }));
    this.waiting = this.waiting.concat(asked); // the list shows them in this order
    for (const one of asked) {
      one.stop.signal.addEventListener("abort", () => this.#drop(one), { once: true });
      this.line = this.line.then(() => this.#send(one));
    }
    this.onchange();
  }

  async #send(one) {
    const { signal } = one.stop;
    if (signal.aborted) return;
    const change = (news) => {
      Object.assign(one, news);
      this.onchange();
    };
    try {
      const watch = {
        signal,
        onprogress: (sent) => change({ sent, trouble: "" }),
        ontrouble: (error) => change({ trouble: error.message }),
      };
      await check(one.file, one.size);
      this.onjob(await this.store.create(one.file, one.options, watch), one);
    } catch (error) {
      if (!signal.aborted) this.#failed(error, one);
    } finally {
      this.#drop(one);
    }
  }

  #drop(one) {
    this.waiting = this.waiting.filter((other) => other !== one);
    this.onchange();
  }

  #failed(error, one) {
    if (!(error instanceof Refusal)) reportError(error); // ours
    this.onerror(error instanceof Refusal ? error : new Refusal("This page failed; the browser's console says how."), one);
  }
}
