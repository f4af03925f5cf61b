// The list of recordings, with names and progress.
import { h } from "./dom.js";
import { roving } from "./roving.js";

export const STATES = {
  sending: "sending",
  queued: "waiting",
  running: "running",
  succeeded: "done",
  failed: "failed",
  cancelled: "cancelled",
};

export const busy = (job) => ["sending", "queued", "running"].includes(job.state);

// `act.cancel(job)`, `act.remove(job)`. One tab stop; arrow keys move within the list.
export class List {
  constructor(root, none, act) {
    Object.assign(this, { root, none, act, rows: new Map() });
    this.stop = roving(root, () => [...this.root.children].map((item) => item.firstChild));
    root.addEventListener("keydown", (event) => this.#pressed(event));
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
    const left = held && !held.isConnected;
    const next = this.root.children[Math.min(place, this.root.children.length - 1)]?.firstChild;
    this.stop(left ? next : this.root.querySelector("[tabindex='0']") || this.rows.get(open)?.link);
    if (left) (next || document.getElementById("files")).focus({ preventScroll: true });
  }

  #row(job) {
    const row = { job };
    row.name = h("span", { class: "label", dir: "auto" });
    row.state = h("span", { class: "state" });
    row.when = h("span", { class: "when" });
    row.bar = h("progress", { max: 1 });
    const line = h("span", { class: "line" }, row.state, row.when);
    row.link = h("a", { href: `#${encodeURIComponent(job.id)}`, tabindex: "-1", "aria-keyshortcuts": "Delete" }, row.name, line, row.bar);
    row.act = h("button", { type: "button", class: "quietly", tabindex: "-1", onclick: () => this.#act(row.job) });
    row.root = h("li", {}, row.link, row.act);
    row.link.addEventListener("click", (event) => row.job.state === "sending" && event.preventDefault());
    this.rows.set(job.id, row);
    return row;
  }

  #act(job) {
    if (busy(job)) this.act.cancel(job);
    else this.act.remove(job);
  }

  #pressed(event) {
    const item = event.target.closest("li");
    const [link, button] = item ? item.children : [];
    if (event.key === "ArrowRight" && event.target === link) button.focus();
    else if (event.key === "ArrowLeft" && event.target === button) link.focus();
    else if (event.key === "Delete" && event.target === link) button.click();
    else return;
    event.preventDefault();
  }

  #update(row, job, open) {
    row.job = job;
    set(row.name, nameOf(job));
    row.link.title = nameOf(job);
    set(row.state, stateOf(job));
    row.state.className = `state ${busy(job) && !moving(job) ? "waiting" : job.state}`;
    set(row.when, when(job));
    const share = progressOf(job);
    row.bar.hidden = !moving(job);
    row.bar.setAttribute("aria-label", `Progress of ${nameOf(job)}`);
    if (share === null || share === 1) row.bar.removeAttribute("value"); // the duration is unknown
    else row.bar.value = share;
    if (open) row.link.setAttribute("aria-current", "page");
    else row.link.removeAttribute("aria-current");
    const what = busy(job) ? "Cancel" : "Delete";
    set(row.act, what);
    row.act.setAttribute("aria-label", `${what} ${nameOf(job)}`);
  }
}

export function nameOf(job) {
  return job.label || "Unnamed recording";
}

// From 0 to 1; null if unknown.
export function progressOf(job) {
  if (job.state === "sending") return job.trouble ? null : job.sent;
  const { done_s: done, total_s: total } = job.progress || {};
  return total && job.state === "running" ? Math.min(1, done / total) : null;
}

// Whether it progresses; not while it waits for the queue or the server.
function moving(job) {
  return job.state === "running" || (job.state === "sending" && job.sent !== null && !job.trouble);
}

function stateOf(job) {
  if (job.state === "sending") {
    if (job.trouble) return `waiting: ${job.trouble}`;
    if (job.sent === null) return "waiting to be sent";
    return job.sent === 1 ? "sent" : "sending";
  }
  if (progressOf(job) === 1) return job.options?.diarize ? "finding speakers" : "finishing";
  return STATES[job.state] || job.state;
}

function when(job) {
  const share = progressOf(job);
  if (share !== null) return share < 1 ? `${Math.floor(100 * share)} %` : "";
  if (job.state === "sending") return "";
  const made = new Date(job.created_at * 1000);
  const now = new Date();
  const clock = { hour: "2-digit", minute: "2-digit" };
  const day = { day: "numeric", month: "short" };
  if (made.toDateString() === now.toDateString()) return made.toLocaleTimeString([], clock);
  if (made.getFullYear() === now.getFullYear()) return made.toLocaleDateString([], day);
  return made.toLocaleDateString([], { ...day, year: "numeric" });
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
