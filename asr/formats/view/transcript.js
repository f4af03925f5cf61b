// The text of a transcript: paragraphs by speaker, words that can be played, searched and coloured.
import { clock, h } from "./dom.js";
import { lastUpTo, paragraphsOf } from "./model.js";

const UNSURE = 0.6; // a paragraph whose speaker has less confidence says so
const DOUBTFUL = 0.5; // words of less probability are marked
const TWICE_MS = 300; // a second click within it makes a double click, which edits and plays nothing

// `seek(seconds, wait)` plays from there, after so many ms or at once; `toggle()` plays or pauses; `edit(word number)`
// and `speaker(first word, last, label or "new")` are asked for by a double click and by the name of a speaker.
export class Transcript {
  constructor(names, act) {
    // `cursor` is the word that is the tab stop, `unsure` are those of little probability; a click edits while `editing`.
    Object.assign(this, { names, act, lit: [], hits: [], spans: [], unsure: [], now: -1, cursor: 0, editing: false });
    this.drawn = { words: new Map(), paragraphs: new Map() }; // of each segment, to be used again
    this.none = h("p", { class: "quiet" }, "Nobody speaks in this recording.");
    const told = "Transcript. Left and right go from word to word; Enter plays the word, Space pauses, F2 edits.";
    this.root = h("section", { class: "transcript", "aria-label": told });
    const focusin = (word) => word && this.#stopAt(Number(word.dataset.n));
    const heard = { pointerdown: this.#held, click: this.#clicked, dblclick: this.#edited, keydown: this.#pressed, focusin };
    for (const [name, hears] of Object.entries(heard)) this.root.addEventListener(name, (event) => hears.call(this, event.target.closest(".w"), event));
  }

  // Draws the text; paragraphs that stay the same keep their elements, so that nothing on the screen moves.
  show(model) {
    this.model = model;
    this.starts = model.words.map((word) => word.start);
    this.members = model.segments.map(() => []); // the words of each segment
    for (const [n, word] of model.words.entries()) this.members[word.segment].push(n);
    const words = new Map();
    this.spans = model.segments.flatMap((segment, index) => {
      const spans = this.#spansOf(segment, this.members[index]);
      words.set(segment.own, spans);
      return spans;
    });
    this.drawn.words = words;
    this.paragraphs = paragraphsOf(model.segments, true);
    this.#draw();
    this.#name();
    this.#stopAt(Math.min(this.cursor, this.spans.length - 1));
    this.#mark();
    [this.lit, this.hits, this.now] = [[], [], -1];
    for (const span of this.root.querySelectorAll(".now, .hit, .found")) span.classList.remove("now", "hit", "found");
  }

  // Goes to the next doubtful word behind the cursor, and returns it.
  goToUnsure() {
    const n = this.unsure.find((one) => one > this.cursor) ?? this.unsure[0];
    this.focus(n);
    return this.model.words[n];
  }

  // Moves the cursor to a word.
  focus(n) {
    this.#stopAt(Math.min(n, this.spans.length - 1));
    const span = this.stop;
    span?.focus({ preventScroll: true });
    if (span && !visible(span)) span.scrollIntoView({ block: "center" });
  }

  // Moves the cursor to the word at a time, or the one after it.
  focusAt(seconds) {
    this.focus(Math.max(0, lastUpTo(this.starts, seconds + 1e-6)));
  }

  // The word of a segment behind so many letters of it, or its last.
  wordBehind(index, letters) {
    const members = this.members[index] || [];
    return members.find((n) => (letters -= this.model.words[n].text.replace(/\s/g, "").length) < 0) ?? members.at(-1) ?? 0;
  }

  // Goes to the choice of the speaker of a word.
  focusName(n) {
    const before = (name) => name.compareDocumentPosition(this.spans[n]) & Node.DOCUMENT_POSITION_FOLLOWING;
    [...this.root.querySelectorAll(".name")].findLast(before)?.focus();
  }

  // Highlights the word at a time, and scrolls to it as long as the reader has not scrolled away.
  at(seconds, follow) {
    const n = this.#wordAt(seconds);
    if (n === this.now) return;
    const stayed = this.now >= 0 && visible(this.spans[this.now]);
    for (const span of this.lit) span.classList.remove("now");
    const word = this.model.words[n];
    this.lit = word ? this.spans.slice(word.first, word.last + 1) : [];
    for (const span of this.lit) span.classList.add("now");
    this.now = n;
    if (follow && stayed && n >= 0 && !visible(this.spans[n])) this.spans[n].scrollIntoView({ block: "center" });
  }

  // Marks all matches of the text; returns their number.
  find(text) {
    for (const span of this.spans) span.classList.remove("hit", "found");
    this.hits = [];
    const wanted = folded(text);
    if (!wanted) return 0;
    let whole = "";
    const starts = [];
    for (const word of this.model.words) {
      whole += whole && word.lead ? " " : "";
      starts.push(whole.length);
      whole += plain(word.text);
    }
    for (let at = whole.indexOf(wanted); at >= 0; at = whole.indexOf(wanted, at + wanted.length)) {
      const first = lastUpTo(starts, at);
      const last = lastUpTo(starts, at + wanted.length - 1);
      this.hits.push([first, last]);
      for (let n = first; n <= last; n++) this.spans[n].classList.add("hit");
    }
    return this.hits.length;
  }

  // Scrolls to a match, by number.
  goTo(number) {
    for (const span of this.spans) span.classList.remove("found");
    const [first, last] = this.hits[number];
    for (let n = first; n <= last; n++) this.spans[n].classList.add("found");
    this.#stopAt(first);
    this.#show(first, "instant");
  }

  #spansOf(segment, members) {
    const old = this.drawn.words.get(segment.own);
    const span = (n) => h("span", { class: `w${segment.doubt ? " doubtful" : ""}`, tabindex: "-1" }, this.model.words[n].text);
    const used = old?.length === members.length ? old : members.map(span);
    if (used.length && used[0].dataset.n !== String(members[0])) members.forEach((n, at) => (used[at].dataset.n = n));
    return used;
  }

  #mark() {
    this.unsure = [];
    this.model.words.forEach(({ sure }, n) => {
      if (sure === null || sure >= DOUBTFUL) return;
      this.unsure.push(n);
      this.spans[n].classList.add("unsure");
      this.spans[n].title = `Probability ${Math.round(100 * sure)} %`;
    });
  }

  #draw() {
    const before = this.drawn.paragraphs;
    this.drawn.paragraphs = new Map();
    const told = this.model.segments.some(({ speaker, cut }) => speaker || cut);
    const nodes = this.paragraphs.map((indices, n) => {
      const segments = indices.map((index) => this.model.segments[index]);
      const { own, speaker, cut } = segments[0];
      const previous = this.paragraphs[n - 1];
      const headed = told && (cut || !(previous && this.model.segments[previous.at(-1)].speaker === speaker));
      const sort = [headed, speaker, ...segments.map((segment) => segment.own)];
      const old = before.get(own);
      const same = old && old.sort.length === sort.length && old.sort.every((part, k) => part === sort[k]);
      const node = same ? old.node : this.#paragraph(indices, headed);
      this.drawn.paragraphs.set(own, { sort, node });
      return node;
    });
    if (!this.model.words.length) nodes.push(this.none);
    const there = new Set(nodes);
    for (const node of [...this.root.children]) if (!there.has(node)) node.remove();
    nodes.forEach((node, n) => {
      if (this.root.children[n] !== node) this.root.insertBefore(node, this.root.children[n] || null);
    });
  }

  // The first and the last word from a heading to the next.
  #run(own) {
    const { segments } = this.model;
    const first = segments.findIndex((segment) => segment.own === own);
    const next = segments.findIndex(({ speaker, cut }, n) => n > first && (cut || speaker !== own.speaker));
    const words = this.members.slice(first, next < 0 ? segments.length : next).flat();
    return [words[0], words.at(-1)];
  }

  #paragraph(indices, headed) {
    const segments = indices.map((index) => this.model.segments[index]);
    const { start, speaker } = segments[0];
    const text = h("p", { dir: "auto" });
    for (const n of indices.flatMap((index) => this.members[index])) {
      if (text.hasChildNodes()) text.append(this.model.words[n].lead);
      text.append(this.spans[n]);
    }
    const colour = speaker ? ` speaker-${this.names.colour(speaker)}` : "";
    const seek = () => this.act.seek(start);
    const time = h("button", { type: "button", class: "time", tabindex: "-1", "aria-label": `Play from ${clock(start)}`, onclick: seek }, clock(start));
    const letter = h("span", { class: "letter", "aria-hidden": "true" }, this.names.letter(speaker));
    const who = headed ? h("div", { class: "who" }, letter, this.#named(segments[0])) : null;
    const doubts = [...new Set(segments.map(({ doubt }) => doubt).filter(Boolean))].map((doubt) => `Underlined text is doubtful: ${doubt}`);
    const sure = Math.min(...segments.map((segment) => segment.sure ?? 1));
    if (speaker && sure < UNSURE) doubts.push(`The speaker is doubtful (confidence ${Math.round(100 * sure)} %).`);
    const notes = doubts.map((doubt) => h("p", { class: "doubt" }, h("span", { class: "icon", "aria-hidden": "true" }, "?"), doubt));
    return h("div", { class: `paragraph${colour}` }, who, time, text, notes);
  }

  // Who speaks from here to the next heading: a choice of all speakers, and of a new one.
  #named({ own, speaker }) {
    const onchange = ({ target }) => this.act.speaker(...this.#run(own), target.value);
    return h("select", { class: "name", "data-speaker": speaker || "", title: "Another speaker", "aria-label": "Speaker", onchange });
  }

  #name() {
    const labels = this.model.speakers;
    for (const choice of this.root.querySelectorAll(".name")) {
      const own = choice.dataset.speaker;
      const option = (label) => h("option", { value: label, selected: label === own }, this.names.shown(label));
      choice.replaceChildren(...(own ? labels : ["", ...labels]).map(option), h("option", { value: "new" }, "A new speaker"));
    }
  }

  // In Chromium no selection begins in what can have the focus.
  #held(word) {
    word?.removeAttribute("tabindex");
    setTimeout(() => word && (word.tabIndex = word === this.stop ? 0 : -1));
  }

  #clicked(word) {
    if (!word || String(getSelection())) return;
    this.focus(Number(word.dataset.n));
    if (this.editing) this.act.edit(this.cursor);
    else this.act.seek(this.model.words[this.cursor].start, TWICE_MS);
  }

  #edited(word) {
    if (!word) return;
    getSelection()?.removeAllRanges();
    this.act.edit(Number(word.dataset.n));
  }

  #stopAt(n) {
    if (this.stop) this.stop.tabIndex = -1;
    this.cursor = Math.max(0, n);
    this.stop = this.spans[this.cursor];
    if (this.stop) this.stop.tabIndex = 0;
  }

  #pressed(word, event) {
    if (!word || event.altKey || event.ctrlKey || event.metaKey) return;
    const step = getComputedStyle(word.parentNode).direction === "rtl" ? -1 : 1;
    if (event.key === "ArrowRight") this.focus(this.cursor + step);
    else if (event.key === "ArrowLeft") this.focus(this.cursor - step);
    else if (event.key === "Enter") this.act.seek(this.model.words[this.cursor].start);
    else if (event.key === " ") this.act.toggle();
    else if (event.key === "F2") this.act.edit(this.cursor);
    else return;
    event.preventDefault();
  }

  #wordAt(seconds) {
    const n = lastUpTo(this.starts, seconds);
    const word = this.model.words[n];
    return word && seconds < Math.max(word.end, word.start + 0.1) ? n : -1;
  }

  // Smoothly only where it is near: text gets its height when it comes on the screen, and moves what is below.
  #show(n, behavior = "auto") {
    this.spans[n].scrollIntoView({ block: "center", behavior });
  }
}

function visible(node) {
  const { top, bottom } = node.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

// What a search looks for, or in.
export function folded(text) {
  return plain(text).trim().replace(/\s+/g, " ");
}

function plain(text) {
  return text.toLocaleLowerCase().normalize("NFKD").replace(/\p{M}/gu, "");
}
