// Whether the server answers, and requests that are repeated until it does.

const WAITS_MS = [500, 1000, 2000, 4000, 8000, 15000];

const pauses = new Set(); // each is called to end it

export const connection = {
  up: true,
  listeners: [], // called with whether it answers

  // Ends all pauses.
  now() {
    for (const end of [...pauses]) end();
  },

  // A request had an answer, or none.
  heard(up) {
    if (this.up === up) return;
    this.up = up;
    for (const listener of this.listeners) listener(up);
  },
};

addEventListener("online", connection.now);
document.addEventListener("visibilitychange", () => document.hidden || connection.up || connection.now());

// Codes of temporary errors: the server is loading or full, or has not released a broken upload.
const FAULTS = 3; // a fault of the server may be that of its end; more of them are not
const PASSING = ["not_ready", "overloaded", "rate_limited", "locked", "in_progress"];

export function passing(error, tries = 0) {
  if (error.status === 500) return tries < FAULTS;
  return error.status === 0 || [408, 502, 503, 504].includes(error.status) || PASSING.includes(error.code);
}

// Repeats `work` until it succeeds or its error will not pass; calls `ontrouble(error)` before each pause.
export async function persistently(work, { signal = null, ontrouble = () => {} } = {}) {
  for (let tries = 0; ; tries++) {
    try {
      return await work();
    } catch (error) {
      if (signal?.aborted || !passing(error, tries)) throw error;
      ontrouble(error);
      // With jitter, so that not all tabs return to a starting server at the same moment.
      const wait = WAITS_MS[Math.min(tries, WAITS_MS.length - 1)] * (0.75 + Math.random() / 2);
      await pause(error.after ? Math.min(1000 * error.after, 30000) : wait, signal);
    }
  }
}

// Throws if the signal is aborted meanwhile.
export function pause(wait, signal = null) {
  return new Promise((resolve, reject) => {
    const over = () => (pauses.delete(over), signal?.aborted ? reject(signal.reason) : resolve());
    pauses.add(over);
    setTimeout(over, wait);
    signal?.addEventListener("abort", over, { once: true });
    if (signal?.aborted) over();
  });
}
