// The recordings of a store as the list shows them, kept up to date with changes by other tabs, programs and
// the server.
import { busy } from "./list.js";

const PAGE = 100;
const BUSY_MS = 3000;
const IDLE_MS = 12000;

export class Recordings {
  // `onchange()` after each change; `onerror(error)` if the list cannot be read.
  constructor(store, { onchange, onerror }) {
    Object.assign(this, { store, onchange, onerror });
    this.jobs = [];
    this.more = false; // there are older ones
    this.read = false; // the list has been read at least once
    this.most = PAGE;
    this.edits = 0; // changes made here; a list that was asked for before one of them is old
    this.stop = new AbortController();
    // Other tabs of this browser send a message; other changes are found by polling.
    this.channel = store.remembered && "BroadcastChannel" in window ? new BroadcastChannel("forescribe.jobs") : null;
    const look = () => document.hidden || this.refresh();
    const { signal } = this.stop;
    this.channel?.addEventListener("message", () => this.refresh(), { signal });
    document.addEventListener("visibilitychange", look, { signal });
    addEventListener("focus", look, { signal });
  }

  close() {
    this.stop.abort();
    this.channel?.close();
    clearTimeout(this.timer);
  }

  find(id) {
    return this.jobs.find((job) => job.id === id);
  }

  older() {
    this.most += PAGE;
    return this.refresh();
  }

  // Reads the list, and once more if it was requested in the meantime.
  async refresh() {
    this.wanted = true;
    if (this.reading) return;
    this.reading = true;
    clearTimeout(this.timer);
    try {
      while (this.wanted && !this.stop.signal.aborted) {
        this.wanted = false;
        await this.#read();
      }
    } catch (error) {
      if (!this.stop.signal.aborted) this.onerror(error);
    }
    this.reading = false;
    this.#later();
  }

  async #read() {
    const { edits } = this;
    const { jobs, more } = await this.store.list(this.most);
    if (edits !== this.edits) this.wanted = true;
    else if (!this.stop.signal.aborted) {
      Object.assign(this, { jobs, more, read: true });
      this.onchange();
    }
  }

  #later() {
    if (this.stop.signal.aborted) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => (document.hidden ? this.#later() : this.refresh()), this.jobs.some(busy) ? BUSY_MS : IDLE_MS);
  }

  // A newer version of a job, from its events.
  heard(job) {
    if (this.find(job.id)?.state !== job.state) this.edits++;
    this.jobs = this.jobs.map((other) => (other.id === job.id ? job : other));
    this.onchange();
  }

  // A change made in this tab; other tabs are notified.
  put(job) {
    this.edits++;
    const known = this.find(job.id);
    this.jobs = known ? this.jobs.map((other) => (other === known ? job : other)) : [job, ...this.jobs];
    this.#tell();
  }

  remove(id) {
    this.edits++;
    this.jobs = this.jobs.filter((job) => job.id !== id);
    this.#tell();
  }

  #tell() {
    this.channel?.postMessage("changed");
    this.onchange();
    this.#later();
  }
}
