// The server's recordings as the list shows them, kept up to date with changes by other tabs, programs and the
// server.
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
    this.most = PAGE;
    this.edits = 0; // changes made here; a list that was asked for before one of them is old
    this.stop = new AbortController();
    const look = () => document.hidden || this.refresh();
    document.addEventListener("visibilitychange", look, { signal: this.stop.signal });
  }

  close() {
    this.stop.abort();
    clearTimeout(this.timer);
  }

  find(id) {
    return this.jobs.find((job) => job.id === id);
  }

  older() {
    this.most += PAGE;
    return this.refresh();
  }

  // Reads the list; one that was asked for before a change made here is read again.
  async refresh() {
    clearTimeout(this.timer);
    const { edits, most } = this;
    try {
      const { jobs, more } = await this.store.list(most);
      if (this.stop.signal.aborted) return;
      if (edits !== this.edits || most !== this.most) return await this.refresh();
      Object.assign(this, { jobs, more });
      this.onchange();
    } catch (error) {
      if (!this.stop.signal.aborted) this.onerror(error);
    }
    this.#later();
  }

  #later() {
    clearTimeout(this.timer);
    if (this.stop.signal.aborted) return;
    this.timer = setTimeout(() => (document.hidden ? this.#later() : this.refresh()), this.jobs.some(busy) ? BUSY_MS : IDLE_MS);
  }

  // A newer version of a job, from its events.
  heard(job) {
    if (this.find(job.id)?.state !== job.state) this.edits++;
    this.jobs = this.jobs.map((other) => (other.id === job.id ? job : other));
    this.onchange();
  }

  // A change made in this tab.
  put(job) {
    this.edits++;
    this.jobs = this.find(job.id) ? this.jobs.map((other) => (other.id === job.id ? job : other)) : [job, ...this.jobs];
    this.onchange();
    this.#later();
  }

  remove(id) {
    this.edits++;
    this.jobs = this.jobs.filter((job) => job.id !== id);
    this.onchange();
  }
}
