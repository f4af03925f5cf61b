// The field in which a segment's text is corrected, in place of its words.
import { button, h } from "./dom.js";

const HELP = "Enter keeps the text, Escape leaves it as it was, Ctrl Enter splits it at the cursor. Alt K plays or pauses, Alt J goes 3 seconds back.";

// `text` is the Transcript, `act` has `correct(segment, text)`, `split(segment, text, place)`, `toggle()` and
// `back()`.
export class Editor {
  constructor(text, act) {
    Object.assign(this, { text, act, index: -1 });
  }

  get isOpen() {
    return this.index >= 0;
  }

  // Opens the segment of word `n`, with the cursor before that word.
  open(n) {
    this.keep(false);
    const { model, members, spans } = this.text;
    const word = model.words[n];
    if (!word) return;
    this.index = word.segment;
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
        button("Keep", () => this.keep(true), { class: "main" }),
        button("Cancel", () => this.cancel()),
        button("Split here", () => this.#split()),
      ),
    );
    own[0].before(this.root);
    this.hidden = own;
    for (const span of own) span.hidden = true;
    this.#fit();
    this.field.focus({ preventScroll: true });
    const place = this.#place(n - this.first);
    this.field.setSelectionRange(place, place);
    this.root.scrollIntoView({ block: "nearest" });
  }

  // Keeps what is written. `back`: the focus returns to the text.
  keep(back) {
    if (!this.isOpen) return;
    const { index, field } = this;
    const place = this.#wordAt(field.selectionStart);
    this.#close();
    this.act.correct(index, field.value);
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
    if (this.isOpen && document.hasFocus() && !this.root.contains(event.relatedTarget)) this.keep(false);
  }

  #pressed(event) {
    const play = { KeyK: this.act.toggle, KeyJ: this.act.back }[event.code];
    if (event.altKey && play) play();
    else if (event.isComposing || event.altKey || event.metaKey) return;
    else if (event.key === "Escape") this.cancel();
    else if (event.key === "Enter" && event.ctrlKey) this.#split();
    else if (event.key === "Enter") this.keep(true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight + 2}px`;
  }

  // Where word number `k` of the segment begins in the field, and which word is at a place.
  #place(k) {
    const words = [...this.field.value.matchAll(/\S+/g)];
    return words[k]?.index ?? this.field.value.length;
  }

  #wordAt(place) {
    const words = [...this.field.value.matchAll(/\S+/g)];
    return words.filter((word) => word.index + word[0].length <= place).length;
  }
}
