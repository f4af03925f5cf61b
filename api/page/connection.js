// Whether the server answers. Requests that lost it wait here, and share one probe.

const WAITS_MS = [500, 1000, 2000, 4000, 8000, 15000];

class Connection {
  constructor() {
    this.up = true;
    this.listeners = [];
    this.waiting = null; // {promise, resolve} while the server does not answer
    this.now = () => {}; // ends the pause before the next probe
    addEventListener("online", () => this.now());
    document.addEventListener("visibilitychange", () => document.hidden || this.now());
  }

  // A request had no answer.
  lost() {
    if (!this.up) return;
    this.up = false;
    this.waiting = deferred();
    this.#tell();
    this.#probe();
  }

  // Until the server answers again, or the signal is aborted.
  async back(signal) {
    if (!this.up) await until(this.waiting.promise, signal);
  }

  async #probe() {
    for (let tries = 0; ; tries++) {
      await this.#pause(WAITS_MS[Math.min(tries, WAITS_MS.length - 1)]);
      try {
        const { ok } = await fetch("health", { cache: "no-store", signal: AbortSignal.timeout(10000) });
        if (ok) break; // a proxy in front may answer without it
      } catch {
        // not yet
      }
    }
    this.up = true;
    this.waiting.resolve();
    this.#tell();
  }

  // With jitter, so that not all tabs return to a starting server at the same moment.
  #pause(wait) {
    return new Promise((resolve) => {
      this.now = resolve;
      setTimeout(resolve, wait * (0.75 + Math.random() / 2));
    });
  }

  #tell() {
    for (const listener of this.listeners) listener(this.up);
  }
}

export const connection = new Connection();

// Codes of temporary errors: the server is loading or full, or has not released a broken upload.
const FAULTS = 3; // a fault of the server may be that of its end; more of them are not
const PASSING = ["not_ready", "overloaded", "rate_limited", "locked", "in_progress"];

export function passing(error, tries = 0) {
  if (error.status === 500) return tries < FAULTS;
  return error.status === 0 || [408, 502, 503, 504].includes(error.status) || PASSING.includes(error.code);
}

// Repeats `work` until it succeeds or its error is not `worth` a retry; calls `ontrouble(error)` before each
// pause.
export async function persistently(work, { signal = null, ontrouble = () => {}, worth = passing } = {}) {
  for (let tries = 0; ; tries++) {
    try {
      return await work();
    } catch (error) {
      if (signal?.aborted || !worth(error, tries)) throw error;
      ontrouble(error);
      if (error.status === 0) await connection.back(signal);
      const wait = error.after ? Math.min(1000 * error.after, 30000) : WAITS_MS[Math.min(tries, 4)];
      if (error.status !== 0 || tries) await pause(wait, signal);
      signal?.throwIfAborted();
    }
  }
}

export function pause(wait, signal = null) {
  return until(new Promise((resolve) => setTimeout(resolve, wait)), signal);
}

async function until(promise, signal) {
  if (!signal) return promise;
  signal.throwIfAborted();
  const left = deferred();
  signal.addEventListener("abort", left.resolve, { once: true });
  await Promise.race([promise, left.promise]);
  signal.removeEventListener("abort", left.resolve);
  signal.throwIfAborted();
}

function deferred() {
  const made = {};
  made.promise = new Promise((resolve) => (made.resolve = resolve));
  return made;
}
