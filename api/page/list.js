// The list of recordings, with names and progress.
import { button, h } from "./dom.js";

const STATES = { queued: "waiting", running: "running", succeeded: "done", failed: "failed", cancelled: "cancelled" };
const STAGES = { reading: "reading", transcribing: "transcribing", diarizing: "finding speakers", finishing: "finishing" };

export const busy = (job) => ["sending", "queued", "running"].includes(job.state);

// `act.cancel(job)`, `act.remove(job)`.
export class List {
  constructor(root, none, act) {
    Object.assign(this, { root, none, act, rows: new Map() });
  }

  // Rows keep their elements, so that focus is kept.
  show(jobs, open) {
    this.none.hidden = jobs.length > 0;
    const held = document.activeElement?.closest?.("#list li");
    const place = [...this.root.children].indexOf(held);
    const there = new Set(jobs.map((job) => job.id));
    for (const [id, row] of this.rows) {
      if (there.has(id)) continue;
      row.root.remove();
      this.rows.delete(id);
    }
    jobs.forEach((job, n) => {
      const row = this.rows.get(job.id) || this.#row(job);
      this.#update(row, job, job.id === open);
      if (this.root.children[n] !== row.root) this.root.insertBefore(row.root, this.root.children[n] || null);
    });
    if (!held || held.isConnected) return;
    const next = this.root.children[Math.min(place, this.root.children.length - 1)]?.firstChild;
    (next || document.getElementById("files")).focus({ preventScroll: true });
  }

  #row(job) {
    const row = { name: h("span", { class: "label", dir: "auto" }), state: h("span", { class: "state" }), when: h("span", { class: "when" }) };
    row.bar = h("progress", { max: 1 });
    row.link = h("a", { href: `#${encodeURIComponent(job.id)}` }, row.name, h("span", { class: "line" }, row.state, row.when), row.bar);
    row.act = button("", () => (busy(row.job) ? this.act.cancel(row.job) : this.act.remove(row.job)), { class: "quietly" });
    row.root = h("li", {}, row.link, row.act);
    row.link.addEventListener("click", (event) => row.job.state === "sending" && event.preventDefault());
    this.rows.set(job.id, row);
    return row;
  }

  #update(row, job, open) {
    row.job = job;
    row.link.title = nameOf(job);
    row.state.className = `state ${busy(job) && !moving(job) ? "waiting" : job.state}`;
    row.bar.hidden = !moving(job);
    row.bar.setAttribute("aria-label", `Progress of ${nameOf(job)}`);
    filled(row.bar, progressOf(job));
    row.link.toggleAttribute("aria-current", open);
    const what = busy(job) ? "Cancel" : "Delete";
    row.act.setAttribute("aria-label", `${what} ${nameOf(job)}`);
    const texts = [[row.name, nameOf(job)], [row.state, stateOf(job)], [row.when, when(job)], [row.act, what]];
    for (const [node, text] of texts) if (node.textContent !== text) node.textContent = text;
  }
}

export function nameOf(job) {
  return job.label || "Unnamed recording";
}

// From 0 to 1; null if unknown. Text comes in parts of some minutes; until the first one nothing is known.
export function progressOf(job) {
  if (job.state === "sending") return job.trouble ? null : job.sent;
  const { done_s: done, total_s: total } = job.progress || {};
  return done && total && job.stage === "transcribing" ? Math.min(1, done / total) : null;
}

export function filled(bar, share) {
  if (share === null || share === 1) bar.removeAttribute("value"); // the duration is unknown
  else bar.value = share;
}

// Whether it progresses; not while it waits for the queue or the server.
function moving(job) {
  return job.state === "running" || (job.state === "sending" && job.sent !== null && !job.trouble);
}

function stateOf(job) {
  if (job.state === "sending") {
    if (job.trouble) return `waiting: ${job.trouble}`;
    return job.sent === null ? "waiting to be sent" : "sending";
  }
  return STAGES[job.stage] || STATES[job.state] || job.state;
}

function when(job) {
  const share = progressOf(job);
  if (share !== null) return share < 1 ? `${Math.floor(100 * share)} %` : "";
  if (moving(job) || job.state === "sending") return "";
  const made = new Date(job.created_at * 1000);
  if (made.toDateString() === new Date().toDateString()) return made.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return made.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
}
