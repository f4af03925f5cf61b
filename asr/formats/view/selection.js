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
    const range = getSelection().rangeCount ? getSelection().getRangeAt(0) : null;
    const words = range && !range.collapsed ? this.#wordsIn(range) : [];
    this.root.hidden = !words.length;
    if (!words.length) return;
    [this.first, this.last] = [words[0], words.at(-1)];
    const told = `Who says ${words.length === 1 ? "this word" : `these ${words.length} words`}?`;
    const speakers = this.text.model.speakers.map((label) => h("option", { value: label }, this.names.shown(label)));
    this.choice.replaceChildren(h("option", { value: "", hidden: true }, told), ...speakers, h("option", { value: "new" }, "A new speaker"));
    const [own, around] = [range.getBoundingClientRect(), this.root.offsetParent.getBoundingClientRect()];
    const left = Math.min(own.left - around.left, around.width - this.root.offsetWidth);
    Object.assign(this.root.style, { left: `${Math.max(0, left)}px`, top: `${own.bottom - around.top + 6}px` });
  }

  #wordsIn(range) {
    if (!this.text.root.contains(range.commonAncestorContainer)) return [];
    const own = document.createRange();
    const holds = (span) => {
      own.selectNodeContents(span.firstChild);
      return range.compareBoundaryPoints(Range.END_TO_START, own) < 0 && range.compareBoundaryPoints(Range.START_TO_END, own) > 0;
    };
    return [...this.text.spans.keys()].filter((n) => !this.text.spans[n].hidden && holds(this.text.spans[n]));
  }

  #given() {
    const { value } = this.choice;
    getSelection().removeAllRanges();
    this.choice.blur();
    this.root.hidden = true;
    this.give(this.first, this.last, value);
  }
}
