// Notices at the top: errors and automatic retries. One for each subject, the newest last.
import { h } from "./dom.js";

const ICONS = { error: "!", warning: "!", note: "i", good: "✓" };
const GOOD_MS = 6000;

export class Notices {
  constructor(root) {
    this.root = root;
    this.held = new Map();
    this.all = h("button", { type: "button", class: "faint", onclick: () => this.#close([...this.held.keys()]) }, "Close all messages");
    root.append(this.all);
    this.#count();
  }

  // `subject`: a later notice replaces an earlier one, and `drop` removes it. Screen readers announce
  // errors at once, other notices when idle.
  tell(subject, text, { kind = "error", action = null, closable = true } = {}) {
    const before = this.held.get(subject);
    if (before?.text === text) return;
    this.drop(subject);
    const root = h(
      "div",
      { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" },
      h("span", { class: "icon", "aria-hidden": "true" }, ICONS[kind]),
      h("p", { dir: "auto" }, kind === "error" ? h("span", { class: "unseen" }, "Error: ") : null, text),
      action ? h("button", { type: "button", onclick: action.run }, action.name) : null,
      closable
        ? h("button", { type: "button", class: "close", "aria-label": "Close this message", onclick: () => this.#close([subject]) }, "×")
        : null,
    );
    this.held.set(subject, { text, root });
    this.root.insertBefore(root, this.all);
    if (kind === "good") setTimeout(() => this.held.get(subject)?.root === root && this.drop(subject), GOOD_MS);
    this.#count();
  }

  // Its reason has passed.
  drop(subject) {
    this.held.get(subject)?.root.remove();
    this.held.delete(subject);
    this.#count();
  }

  // Closed by the user: focus moves to the next notice, or to the page's content.
  #close(subjects) {
    for (const subject of subjects) this.drop(subject);
    const next = this.root.querySelector(".close") || document.getElementById("content");
    next.focus({ preventScroll: true });
  }

  #count() {
    this.all.hidden = this.root.querySelectorAll(".close").length < 2;
  }
}
