// The field in which a segment's text is corrected, in place of its words.
import { button, h } from "./dom.js";

const HELP = "Enter saves the text, Escape leaves it as it was, Ctrl Enter splits it at the cursor. Ctrl A selects the word, then all. Alt K plays or pauses, Alt J goes 3 seconds back.";

// `text` is the Transcript, `act` has `correct(segment, text)`, `everywhere(segment, text)`,
// `split(segment, text, place)`, `toggle()`, `pause()` and `back()`; `remembers` is whether corrections everywhere are
// for later recordings too.
export class Editor {
  constructor(text, act) {
    Object.assign(this, { text, act, index: -1 });
  }

  get isOpen() {
    return this.index >= 0;
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
    this.field = h("textarea", {
      "aria-label": "Text of this part. " + HELP,
      dir: "auto",
      rows: 1,
      maxlength: 20000, // what the server takes
      spellcheck: "true",
      oninput: () => this.#fit(),
      onkeydown: (event) => this.#pressed(event),
    });
    this.field.value = this.before;
    this.root = h(
      "span",
      { class: "editor", onfocusout: (event) => this.#left(event), ondblclick: (event) => event.stopPropagation() },
      this.field,
      h(
        "span",
        { class: "editor-actions" },
        button("Save", () => this.save(true), { class: "main" }),
        button("Cancel", () => this.cancel()),
        button("Split here", () => this.#split()),
        button(this.act.remembers ? "Everywhere, and remember" : "Everywhere", () => this.save(true, this.act.everywhere), { class: "everywhere" }),
      ),
    );
    own[0].before(this.root);
    this.hidden = own;
    for (const span of own) span.hidden = true;
    this.#fit();
    this.field.focus({ preventScroll: true });
    // The words with the white space between them are the text.
    const before = model.words.slice(this.first, n + 1).map(({ lead, text }, k) => (k ? lead : "") + text).join("").length;
    this.field.setSelectionRange(before - word.text.length, before);
    this.root.scrollIntoView({ block: "nearest" });
  }

  // Saves what is written, here or as `by` does. `back`: the focus returns to the text.
  save(back, by = this.act.correct) {
    if (!this.isOpen) return;
    const { index, field } = this;
    const place = this.#wordAt(field.selectionStart);
    this.#close();
    by(index, field.value);
    const members = this.text.members[Math.min(index, this.text.members.length - 1)] || [];
    if (back) this.text.focus(members[Math.min(place, members.length - 1)] ?? 0);
  }

  cancel() {
    const { first } = this;
    this.#close();
    this.text.focus(first);
  }

  #split() {
    const { index, field } = this;
    const place = this.#wordAt(field.selectionStart);
    this.#close();
    this.act.split(index, field.value, place);
  }

  #close() {
    const { root } = this;
    this.index = -1;
    for (const span of this.hidden) span.hidden = false;
    root.remove();
  }

  #left(event) {
    if (this.isOpen && document.hasFocus() && !this.root.contains(event.relatedTarget)) this.save(false);
  }

  #pressed(event) {
    const play = { KeyK: this.act.toggle, KeyJ: this.act.back }[event.code];
    const all = event.key === "a" && (event.ctrlKey || event.metaKey);
    const once = all && !this.selected;
    if (!["Control", "Meta"].includes(event.key)) this.selected = all;
    if (once) this.#select();
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

  // Selects the word at the cursor.
  #select() {
    const { value, selectionStart: at } = this.field;
    const [before] = value.slice(0, at).match(/\S*$/);
    const [behind] = value.slice(at).match(/^\S*/);
    this.field.setSelectionRange(at - before.length, at + behind.length);
  }

  // Which word is at a place.
  #wordAt(place) {
    const words = [...this.field.value.matchAll(/\S+/g)];
    return words.filter((word) => word.index + word[0].length <= place).length;
  }
}
