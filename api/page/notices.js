// Notices at the top: errors and automatic retries. One for each subject, the newest last.
import { button, h } from "./dom.js";

const ICONS = { error: "!", warning: "!", good: "✓" };
const GOOD_MS = 6000;

export class Notices {
  constructor(root) {
    this.root = root;
    this.held = new Map();
  }

  // `subject`: a later notice replaces an earlier one, and `drop` removes it. Screen readers announce errors at
  // once, other notices when idle.
  tell(subject, text, { kind = "error", action = null } = {}) {
    if (this.held.get(subject)?.text === text) return;
    this.drop(subject);
    const root = h(
      "div",
      { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" },
      h("span", { class: "icon", "aria-hidden": "true" }, ICONS[kind]),
      h("p", { dir: "auto" }, text),
      action ? button(action.name, action.run) : null,
      button("×", () => this.#close(subject), { class: "close", "aria-label": "Close this message" }),
    );
    this.held.set(subject, { text, root });
    this.root.append(root);
    if (kind === "good") setTimeout(() => this.held.get(subject)?.root === root && this.drop(subject), GOOD_MS);
  }

  // Its reason has passed.
  drop(subject) {
    this.held.get(subject)?.root.remove();
    this.held.delete(subject);
  }

  // Closed by the user: the focus moves to the next notice, or to the page's content.
  #close(subject) {
    this.drop(subject);
    (this.root.querySelector(".close") || document.getElementById("content")).focus({ preventScroll: true });
  }
}
