// The list of recordings: what each is called and how far it is.
import { h } from "./dom.js";

export const STATES = {
  sending: "sending",
  queued: "waiting",
  running: "running",
  succeeded: "done",
  failed: "failed",
  cancelled: "cancelled",
};

export const busy = (job) => ["sending", "queued", "running"].includes(job.state);

// `act.cancel(job)`, `act.remove(job)`.
export class List {
  constructor(root, none, act) {
    Object.assign(this, { root, none, act, rows: new Map() });
  }

  // Rows stay the elements that they are, so that focus stays where it is.
  show(jobs, open) {
    this.none.hidden = jobs.length > 0;
    for (const [id, row] of this.rows) {
      if (jobs.some((job) => job.id === id)) continue;
      row.root.remove();
      this.rows.delete(id);
    }
    jobs.forEach((job, n) => {
      const row = this.rows.get(job.id) || this.#row(job);
      this.#update(row, job, job.id === open);
      if (this.root.children[n] !== row.root) this.root.insertBefore(row.root, this.root.children[n] || null);
    });
  }

  #row(job) {
    const row = { job };
    row.name = h("span", { class: "label", dir: "auto" });
    row.state = h("span", { class: "state" });
    row.when = h("span", { class: "when" });
    row.bar = h("progress", { max: 1 });
    row.link = h("a", { href: `#${encodeURIComponent(job.id)}` }, row.name, h("span", { class: "line" }, row.state, row.when), row.bar);
    row.act = h("button", { type: "button", class: "quietly", onclick: () => this.#act(row.job) });
    row.root = h("li", {}, row.link, row.act);
    this.rows.set(job.id, row);
    return row;
  }

  #act(job) {
    if (busy(job)) this.act.cancel(job);
    else this.act.remove(job);
  }

  #update(row, job, open) {
    row.job = job;
    set(row.name, nameOf(job));
    set(row.state, STATES[job.state] || job.state);
    row.state.className = `state ${job.state}`;
    set(row.when, when(job));
    const share = progressOf(job);
    row.bar.hidden = !busy(job);
    row.bar.setAttribute("aria-label", `Progress of ${nameOf(job)}`);
    if (share === null) row.bar.removeAttribute("value");
    else row.bar.value = share;
    if (open) row.link.setAttribute("aria-current", "page");
    else row.link.removeAttribute("aria-current");
    set(row.act, busy(job) ? "Cancel" : "Delete");
    row.act.setAttribute("aria-label", `${busy(job) ? "Cancel" : "Delete"} ${nameOf(job)}`);
  }
}

export function nameOf(job) {
  return job.label || "Recording without a name";
}

// 0 to 1; null while nobody knows.
export function progressOf(job) {
  if (job.state === "sending") return job.sent;
  const { done_s: done, total_s: total } = job.progress || {};
  return total && job.state === "running" ? Math.min(1, done / total) : null;
}

function when(job) {
  if (job.state === "sending") return `${Math.round(100 * job.sent)} %`;
  const share = progressOf(job);
  if (share !== null) return `${Math.round(100 * share)} %`;
  const made = new Date(job.created_at * 1000);
  const today = made.toDateString() === new Date().toDateString();
  return today
    ? made.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : made.toLocaleDateString([], { day: "numeric", month: "short" });
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
