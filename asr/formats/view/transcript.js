// The text of a transcript: paragraphs by speaker, words that can be played, searched and coloured.
import { clock } from "./clock.js";
import { calmly, h } from "./dom.js";
import { lastUpTo, paragraphsOf, writerOf } from "./model.js";

// A paragraph whose speaker has less confidence than this says so.
const UNSURE = 0.6;

// `seek(seconds)` plays from there, `toggle()` plays or pauses.
export class Transcript {
  constructor(model, names, { seek, toggle }) {
    this.model = model;
    this.names = names;
    this.spans = model.words.map((word, n) => {
      const writer = writerOf(word);
      const doubtful = model.segments[word.segment].doubt ? " doubtful" : "";
      return h("span", { class: `w${writer ? ` by-${writer}` : ""}${doubtful}`, "data-n": n, tabindex: "-1" }, word.text);
    });
    this.starts = model.words.map((word) => word.start);
    this.members = model.segments.map(() => []); // the words of each segment
    for (const [n, word] of model.words.entries()) this.members[word.segment].push(n);
    this.lit = [];
    this.hits = [];
    this.now = -1;
    this.cursor = 0; // the word that is the tab stop
    if (this.spans.length) this.spans[0].tabIndex = 0;
    this.paragraphs = paragraphsOf(model);
    this.firsts = this.paragraphs.map(([index]) => this.members[index][0]).filter((n) => n !== undefined);
    this.root = h(
      "section",
      {
        class: "transcript",
        "aria-label": "Transcript. Left and right go from word to word, up and down from paragraph to paragraph; Enter plays the word, Space pauses.",
        onclick: (event) => this.#clicked(event, seek),
        onkeydown: (event) => this.#pressed(event, seek, toggle),
        onfocusin: (event) => this.#entered(event),
      },
      this.paragraphs.map((indices, n) => this.#paragraph(indices, this.paragraphs[n - 1], seek)),
    );
    if (!model.words.length) this.root.append(h("p", { class: "quiet" }, "Nobody speaks in this recording."));
    names.listeners.push(() => this.#named());
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
    if (follow && stayed && n >= 0 && !visible(this.spans[n])) this.#show(n);
  }

  // Marks all matches of the text; returns their number.
  find(text) {
    for (const span of this.spans) span.classList.remove("hit", "found");
    this.hits = [];
    const wanted = plain(text).trim().replace(/\s+/g, " ");
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
    this.#show(first);
  }

  #paragraph(indices, before, seek) {
    const segments = indices.map((index) => this.model.segments[index]);
    const { start, speaker } = segments[0];
    const text = h("p", { dir: "auto" });
    for (const n of indices.flatMap((index) => this.members[index])) {
      if (text.hasChildNodes()) text.append(this.model.words[n].lead);
      text.append(this.spans[n]);
    }
    const colour = speaker ? ` speaker-${this.names.colour(speaker)}` : "";
    const time = h(
      "button",
      { type: "button", class: "time", tabindex: "-1", "aria-label": `Play from ${clock(start)}`, onclick: () => seek(start) },
      clock(start),
    );
    const same = before && this.model.segments[before.at(-1)].speaker === speaker;
    const who = this.model.speakers.length && !same
      ? h(
          "h3",
          { class: "who" },
          h("span", { class: "letter", "aria-hidden": "true" }, this.names.letter(speaker)),
          h("span", { class: "name", "data-label": speaker || "" }, this.names.shown(speaker)),
        )
      : null;
    const doubts = new Set(segments.map((segment) => segment.doubt).filter(Boolean));
    const notes = [...doubts].map((doubt) =>
      h("p", { class: "doubt" }, h("span", { class: "icon", "aria-hidden": "true" }, "?"), `Underlined text is doubtful: ${doubt}`),
    );
    const sure = confidence(segments);
    if (speaker && sure !== null && sure < UNSURE) {
      const share = `${Math.round(100 * sure)} %`;
      notes.push(h("p", { class: "doubt" }, h("span", { class: "icon", "aria-hidden": "true" }, "?"), `The speaker is doubtful (confidence ${share}).`));
    }
    return h("div", { class: `paragraph${colour}` }, who, time, text, notes);
  }

  #named() {
    for (const name of this.root.querySelectorAll(".name")) {
      name.textContent = this.names.shown(name.dataset.label);
    }
  }

  #clicked(event, seek) {
    const word = event.target.closest(".w");
    if (!word || String(getSelection())) return;
    this.#stopAt(Number(word.dataset.n));
    seek(this.model.words[this.cursor].start);
  }

  #entered(event) {
    const word = event.target.closest(".w");
    if (word) this.#stopAt(Number(word.dataset.n));
  }

  #stopAt(n) {
    this.spans[this.cursor].tabIndex = -1;
    this.cursor = n;
    this.spans[n].tabIndex = 0;
  }

  #pressed(event, seek, toggle) {
    const word = event.target.closest(".w");
    if (!word || event.altKey || event.ctrlKey || event.metaKey) return;
    const to = this.#target(event.key, getComputedStyle(word.parentNode).direction === "rtl" ? -1 : 1);
    if (to !== null) this.spans[Math.min(Math.max(to, 0), this.spans.length - 1)].focus();
    else if (event.key === "Enter") seek(this.model.words[this.cursor].start);
    else if (event.key === " ") toggle();
    else return;
    event.preventDefault();
  }

  // The word that a key moves to; `step` is -1 for text from right to left.
  #target(key, step) {
    const here = this.cursor;
    const paragraph = lastUpTo(this.firsts, here);
    return {
      ArrowRight: here + step,
      ArrowLeft: here - step,
      ArrowDown: this.firsts[paragraph + 1] ?? here,
      ArrowUp: this.firsts[here > this.firsts[paragraph] ? paragraph : paragraph - 1] ?? here,
      Home: 0,
      End: this.spans.length - 1,
    }[key] ?? null;
  }

  #wordAt(seconds) {
    const n = lastUpTo(this.starts, seconds);
    const word = this.model.words[n];
    return word && seconds < Math.max(word.end, word.start + 0.1) ? n : -1;
  }

  #show(n) {
    this.spans[n].scrollIntoView({ block: "center", behavior: calmly() });
  }
}

// The mean over the segments' time; null where no confidence is known.
function confidence(segments) {
  const known = segments.filter(({ sure }) => sure !== null);
  const total = known.reduce((sum, { start, end }) => sum + end - start, 0);
  return total ? known.reduce((sum, { start, end, sure }) => sum + sure * (end - start), 0) / total : null;
}

function visible(node) {
  const { top, bottom } = node.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

function plain(text) {
  return text.toLocaleLowerCase().normalize("NFKD").replace(/\p{M}/gu, "");
}
