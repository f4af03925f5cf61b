// The field in which a segment's text is corrected, in place of its words.
import { button, h } from "./dom.js";
import { bare } from "./edits.js";

const APART_MS = 300; // the most between two clicks on a word, which is not to move before the second
const HELP = "Enter saves the text, Escape leaves it as it was, Ctrl Enter splits it at the cursor. Ctrl A selects the word, then all. Alt K plays or pauses, Alt J goes 3 seconds back.";

// `text` is the Transcript, `act` has `correct(segment, text)`, `everywhere(segment, text)`,
// `split(segment, text, letters before it)`, `toggle()`, `pause()` and `back()`; `remembers` is whether corrections
// everywhere are for later recordings too; `signal` ends it.
export class Editor {
  constructor(text, act) {
    Object.assign(this, { text, act, index: -1, leaving: 0 }); // of the segment, -1 while it is closed
    const pressed = ({ target }) => {
      this.onWord = Boolean(target.closest?.(".transcript .w"));
      if (this.leaving && !this.onWord) this.save(false);
    };
    document.addEventListener("pointerdown", pressed, { capture: true, signal: act.signal });
  }

  // Opens the segment of word `n`, with that word selected, and stops the sound.
  open(n) {
    this.save(false);
    this.act.pause();
    const { model, members, spans } = this.text;
    const word = model.words[n];
    if (!word) return;
    this.index = word.segment;
    this.selected = false; // the word, by Ctrl A
    this.first = members[this.index][0];
    const own = members[this.index].map((k) => spans[k]);
    this.before = model.segments[this.index].text.trim();
    const most = 20000; // characters, what the server takes
    const told = { "aria-label": "Text of this part. " + HELP, dir: "auto", rows: 1, maxlength: most, spellcheck: "true" };
    this.field = h("textarea", { ...told, oninput: () => this.#fit() });
    this.field.value = this.before;
    const actions = [
      button("Save", () => this.save(true), { class: "main" }),
      button("Cancel", () => this.cancel()),
      button("Split here", () => this.#split()),
      button(this.act.remembers ? "Everywhere, and remember" : "Everywhere", () => this.save(true, this.act.everywhere), { class: "everywhere" }),
    ];
    const heard = { onfocusout: (event) => this.#left(event), onkeydown: (event) => this.#pressed(event), ondblclick: (event) => event.stopPropagation() };
    this.root = h("span", { class: "editor", ...heard }, this.field, h("span", { class: "editor-actions" }, actions));
    own[0].before(this.root);
    this.hidden = own;
    for (const span of own) span.hidden = true;
    this.#fit();
    this.field.focus({ preventScroll: true });
    // The words with the white space between them are the text.
    const before = model.words.slice(this.first, n + 1).map(({ lead, text }, k) => (k ? lead : "") + text).join("").length;
    this.#select(before - word.text.length, before);
    this.root.scrollIntoView({ block: "nearest" });
  }

  // Saves what is written, here or as `by` does. `back`: the focus returns to the text.
  save(back, by = this.act.correct) {
    if (this.index < 0) return;
    const { index, field, letters } = this;
    this.#close();
    by(index, field.value);
    if (back) this.text.focus(this.text.wordBehind(Math.min(index, this.text.members.length - 1), letters));
  }

  cancel() {
    this.#close();
    this.text.focus(this.first);
  }

  #split() {
    const { letters } = this;
    this.save(false, (index, text) => this.act.split(index, text, letters));
  }

  #close() {
    this.leaving = clearTimeout(this.leaving) || 0;
    this.index = -1;
    for (const span of this.hidden) span.hidden = false;
    this.root.remove();
  }

  #left(event) {
    if (this.index < 0 || !document.hasFocus() || this.root.contains(event.relatedTarget)) return;
    if (this.onWord) this.leaving = setTimeout(() => this.save(false), APART_MS);
    else this.save(false);
  }

  #pressed(event) {
    if (event.target !== this.field && event.key !== "Escape") return;
    const play = { KeyK: this.act.toggle, KeyJ: this.act.back }[event.code];
    const all = event.key === "a" && (event.ctrlKey || event.metaKey);
    const once = all && !this.selected;
    if (!["Control", "Meta"].includes(event.key)) this.selected = all;
    if (once) this.#selectWord();
    else if (event.altKey && play) play();
    else if (event.isComposing || event.altKey || event.metaKey) return;
    else if (event.key === "Escape") this.cancel();
    else if (event.key === "Enter" && event.ctrlKey) this.#split();
    else if (event.key === "Enter") this.save(true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight + 2}px`;
  }

  #selectWord() {
    const { value, selectionStart: at } = this.field;
    this.#select(at - value.slice(0, at).match(/\S*$/)[0].length, at + value.slice(at).match(/^\S*/)[0].length);
  }

  // Selects a word without the marks around it.
  #select(start, end) {
    const word = this.field.value.slice(start, end);
    const inner = bare(word) || word;
    this.field.setSelectionRange(start + word.indexOf(inner), start + word.indexOf(inner) + inner.length);
  }

  // How many letters stand before the cursor.
  get letters() {
    return this.field.value.slice(0, this.field.selectionStart).replace(/\s/g, "").length;
  }
}
