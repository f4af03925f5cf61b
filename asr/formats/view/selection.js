// Words that are selected in the text with the mouse, and a choice beside them of who has said them.
import { h } from "./dom.js";

const STILL_MS = 200; // until the selection stays as it is

// `give(first word, last word, label or "new")`.
export class Selection {
  constructor(text, names, give, signal) {
    Object.assign(this, { text, names, give });
    this.choice = h("select", { "aria-label": "Speaker of the selected words", onchange: () => this.#given() });
    this.root = h("div", { class: "selection", hidden: true }, this.choice);
    const later = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.#show(), STILL_MS);
    };
    document.addEventListener("selectionchange", later, { signal });
    document.addEventListener("pointerdown", ({ target }) => (this.held = this.text.root.contains(target)), { signal });
    document.addEventListener("pointerup", () => (this.held = false, later()), { signal });
  }

  #show() {
    if (this.held || this.root.contains(document.activeElement)) return;
    const { spans, model } = this.text;
    const range = getSelection().rangeCount ? getSelection().getRangeAt(0) : new Range();
    const words = range.collapsed ? [] : [...spans.keys()].filter((n) => !spans[n].hidden && holds(range, spans[n].firstChild));
    this.root.hidden = !words.length;
    if (!words.length) return;
    [this.first, this.last] = [words[0], words.at(-1)];
    const told = words.length === 1 ? "Who says this word?" : `Who says these ${words.length} words?`;
    const speakers = model.speakers.map((label) => h("option", { value: label }, this.names.shown(label)));
    this.choice.replaceChildren(h("option", { value: "", hidden: true }, told), ...speakers, h("option", { value: "new" }, "A new speaker"));
    const [own, around] = [range.getBoundingClientRect(), this.root.offsetParent.getBoundingClientRect()];
    const left = Math.max(0, Math.min(own.left - around.left, around.width - this.root.offsetWidth));
    Object.assign(this.root.style, { left: `${left}px`, top: `${own.bottom - around.top + 6}px` });
  }

  #given() {
    getSelection().removeAllRanges();
    this.root.hidden = true;
    this.give(this.first, this.last, this.choice.value);
  }
}

function holds(range, text) {
  const own = new Range();
  own.selectNodeContents(text);
  return range.compareBoundaryPoints(Range.END_TO_START, own) < 0 && range.compareBoundaryPoints(Range.START_TO_END, own) > 0;
}
