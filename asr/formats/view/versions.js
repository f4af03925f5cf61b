// The saved versions: what was changed in each, how it differs from the text now, and a way back to it.
import { button, h } from "./dom.js";
import { alike, parts } from "./edits.js";

// `restore(state, note)`; `keeper` as in saving.js.
export class Versions {
  constructor(edits, keeper, restore) {
    Object.assign(this, { edits, keeper });
    this.list = h("ol", {});
    this.text = h("p", { class: "version", dir: "auto", tabindex: "0", role: "region", "aria-label": "The version" });
    this.back = button("Restore", () => (this.root.close(), restore(...this.chosen)), { class: "main" });
    const about = h("p", { class: "note" }, "Marked: only in this version. Struck out: only in the text now.");
    const told = h("div", { class: "told" }, about, this.text, h("div", { class: "tools" }, this.back, button("Close", () => this.root.close())));
    this.root = h("dialog", { class: "versions", "aria-label": "Versions" }, h("h2", {}, "Versions"), this.list, told);
  }

  async open() {
    const { history } = await this.keeper.version();
    const entries = history.toReversed().map(({ version, saved_at: at, note }) => {
      const when = new Date(1000 * at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      return [note || "Corrected", when, async () => this.edits.unpacked(await this.keeper.version(version))];
    });
    entries.push(["As it was transcribed", "", () => this.edits.original]);
    this.list.replaceChildren(...entries.map((entry) => {
      const [note, when] = entry;
      const look = ({ currentTarget }) => this.#look(entry, currentTarget);
      return h("li", {}, h("button", { type: "button", onclick: look }, note, h("span", { class: "note" }, when)));
    }));
    this.root.showModal();
    this.list.querySelector("button").click();
  }

  // Shows a version beside the text now.
  async #look([note, when, load], chosen) {
    for (const one of this.list.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === chosen));
    this.back.disabled = true;
    try {
      const state = await load();
      if (chosen.getAttribute("aria-pressed") !== "true") return; // another was chosen meanwhile
      this.chosen = [state, `Restored: ${[note, when].filter(Boolean).join(", ")}`];
      this.text.replaceChildren(...this.#compared(state));
      this.back.disabled = false;
      this.text.querySelector("ins, del")?.scrollIntoView({ block: "nearest" });
    } catch (error) {
      this.text.replaceChildren(error.message);
    }
  }

  // In pieces that begin at the same time in both.
  #compared(state) {
    const sides = [this.edits.state, state];
    const [mine, theirs] = sides.map(({ segments }) => new Set(segments.map(({ start }) => start)));
    const rows = new Map([-1, ...mine.intersection(theirs)].map((start) => [start, [[], []]]));
    sides.forEach(({ segments, names }, side) => {
      let [row, before] = [rows.get(-1), null];
      for (const { start, text, speaker } of segments) {
        row = rows.get(start) || row;
        if (speaker !== before) row[side].push(`\n${names[speaker] || speaker || "Unknown speaker"}: `);
        before = speaker;
        row[side].push(...parts(text, this.edits.spaced));
      }
    });
    return [...rows.values()].map(([now, then]) => differing(now, then)).flat().filter(Boolean);
  }
}

function differing(now, then) {
  const [head, tail] = alike(now, then);
  const part = (tag, words) => (words.length ? h(tag, {}, words.join("")) : null);
  const middle = (words) => words.slice(head, words.length - tail);
  return [then.slice(0, head).join(""), part("del", middle(now)), part("ins", middle(then)), then.slice(then.length - tail).join("")];
}
