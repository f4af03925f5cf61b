// The view of one recording: text, speakers, corrections, search, player. Page and report share it.
import { docx } from "./docx.js";
import { button, clock, h } from "./dom.js";
import { Editor } from "./editor.js";
import { Edits } from "./edits.js";
import { md, srt, txt, vtt } from "./formats.js";
import { menu } from "./menu.js";
import { modelOf, segmentsOf, spacedIn } from "./model.js";
import { Names } from "./names.js";
import { people } from "./people.js";
import { Player } from "./player.js";
import { Saving } from "./saving.js";
import { search } from "./search.js";
import { Transcript } from "./transcript.js";

export const KINDS = {
  docx: "Word (.docx)",
  md: "Markdown (.md)",
  txt: "Text (.txt)",
  srt: "Subtitles (.srt)",
  vtt: "Subtitles (.vtt)",
  json: "Everything (.json)",
  rttm: "Turns of speakers (.rttm)",
  recording: "The recording",
};
const SAID_MS = 6000;
const FILE = /^(?<stem>.*?)(?<ending>\.[a-z0-9]{1,5})?$/is;

// `data` is the JSON of the result; `keeper` keeps corrections (saving.js), and `kept` are those it has.
// `downloads` are [name, make]; `make` returns a Blob, a URL, or a promise of either. `remember` takes corrections
// [heard, meant] for later recordings, where there is a place for them. `languages` are English names by code, for
// those that the browser does not know.
export class Viewer {
  constructor(data, { title, keeper, kept = null, src = null, note = "", downloads = [], remember = null, languages = {} }) {
    Object.assign(this, { data, title, remember, languages });
    this.edits = new Edits(segmentsOf(data), spacedIn(data.language));
    if (kept) this.edits.open(kept);
    this.model = modelOf(data, this.edits.state.segments);
    this.names = new Names(this.edits);
    this.saving = new Saving(this.edits, keeper);
    this.player = new Player({ src, note });
    this.text = new Transcript(this.names, {
      seek: (...given) => this.player.seek(...given),
      toggle: () => this.player.toggle(),
      edit: (n) => this.editor.open(Math.min(n, this.text.spans.length - 1)),
      speaker: (indices, choice) => this.#give(indices, choice),
    });
    this.editor = new Editor(this.text, {
      correct: (index, text) => this.#correct(index, text),
      everywhere: (index, text) => this.#everywhere(index, text),
      remembers: Boolean(remember),
      split: (index, text, place) => this.#correct(index, text) && this.#split(index, place),
      toggle: () => this.player.toggle(),
      pause: () => this.player.pause(),
      back: () => this.player.back(),
    });
    this.player.ontime = (at, playing) => this.text.at(at, playing);
    this.people = people(this.names, {
      name: (label, name) => this.edits.do(this.edits.withName(label, name), `Named ${name.trim() || this.names.shown(label)}`, `name ${label}`),
      merge: (from, into) => this.edits.do(this.edits.withMerge(from, into), `Merged ${this.names.shown(from)} with ${this.names.shown(into)}`),
    });
    this.#build(downloads);
    this.edits.listeners.push((note) => this.#changed(note));
    this.#changed("");
  }

  close() {
    this.editor.save(false);
    this.saving.flush();
    this.player.stop();
  }

  // A file of a page without a server.
  file(name) {
    const made = { docx, md, txt, srt, vtt, json: () => JSON.stringify(this.#corrected()) }[name];
    return made(this.model, this.names, this.title.match(FILE).groups.stem);
  }

  #corrected() {
    const { data, edits, names } = this;
    if (!edits.changed) return data;
    const segments = this.model.segments.map(({ own, speaker, start, end, text }, id) => {
      const old = data.segments[edits.places.get(own)] || { start, end, text, ...(own.words ? { words: own.words } : {}) };
      return { ...old, id, ...(speaker ? { speaker: names.shown(speaker) } : {}) };
    });
    return { ...data, text: segments.map(({ text }) => text).join("").trim(), segments };
  }

  // -- corrections -----------------------------------------------------------------------------------

  // Returns whether the segment is still there.
  #correct(index, text) {
    const at = this.edits.at(index);
    this.edits.do(this.edits.withText(index, text), text.trim() ? `Corrected at ${at}` : `Deleted at ${at}`);
    return text.trim() !== "";
  }

  // What is corrected in a segment, in all others too.
  #everywhere(index, text) {
    const [changes, pairs, count] = this.edits.withEverywhere(index, text);
    if (!pairs.length) {
      this.#correct(index, text);
      return this.#say("Corrected here only: no words stand in place of others.");
    }
    this.remember?.(pairs);
    const told = pairs.map(([heard, meant]) => `${heard} → ${meant || "nothing"}`).join(", ");
    const where = `${count} ${count === 1 ? "place" : "places"}`;
    this.edits.do(changes, `${told}: corrected at ${where}${this.remember ? ", and remembered for new recordings" : ""}`);
  }

  // Cuts the segment before its word number `place`.
  #split(index, place) {
    const done = this.edits.do(this.edits.withSplit(index, place), `Split at ${this.edits.at(index)}`);
    if (done) this.text.focus(this.text.members[index + 1][0]);
    else this.#say("There is nothing to split here.");
  }

  #give(indices, choice) {
    const label = choice === "new" ? this.edits.newSpeaker(this.names.labels) : choice;
    this.edits.do(this.edits.withSpeaker(indices, label), `Speaker at ${this.edits.at(indices[0])}`);
  }

  #replace(text, by) {
    const [changes, count] = this.edits.withReplaced(text, by);
    if (count) this.edits.do(changes, `Replaced ${text.trim()} ${count === 1 ? "once" : `${count} times`}`);
    return count;
  }

  // -- what is shown ---------------------------------------------------------------------------------

  #changed(note) {
    const { edits, text } = this;
    this.names.learn();
    const focused = document.activeElement?.closest?.(".transcript .w");
    const place = text.model?.words[text.cursor]?.start;
    this.model = modelOf(this.data, edits.state.segments);
    text.show(this.model);
    if (focused && place !== undefined) text.focusAt(place);
    this.people.show(this.model.speakers);
    this.summary.textContent = this.#summed();
    for (const [control, steps, name] of [[this.undoing, edits.past, "Undo"], [this.redoing, edits.future, "Redo"]]) {
      control.disabled = !steps.length;
      control.title = steps.length ? `${name}: ${steps.at(-1).note}` : "";
    }
    this.seeking.again();
    const { length } = text.unsure;
    this.doubting.hidden = !length;
    this.doubting.textContent = `${length} doubtful ${length === 1 ? "word" : "words"} ↓`;
    if (note) this.#say(`${note}.`);
  }

  #summed() {
    const { duration, language, speakers, words, failed } = this.model;
    const count = (list, one, several) => (list.length ? `${list.length} ${list.length === 1 ? one : several}` : null);
    const name = language && new Intl.DisplayNames(["en"], { type: "language", fallback: "none" }).of(language);
    const told = [clock(duration), name || this.languages[language] || language, count(speakers, "speaker", "speakers"), count(words, "word", "words"), failed ? `${failed.toFixed(1)} s failed` : null];
    return told.filter(Boolean).join(" · ");
  }

  // What was said disappears by and by, but for what went wrong.
  #say(text, bad = false) {
    clearTimeout(this.fading);
    this.said.textContent = text;
    this.said.classList.toggle("bad", bad);
    if (text && !bad) this.fading = setTimeout(() => this.#say(""), SAID_MS);
  }

  // Runs `work`, whose answer or error is shown.
  #told(work) {
    return async () => {
      this.#say("");
      try {
        this.#say((await work()) || "");
      } catch (error) {
        this.#say(error.message, true);
      }
    };
  }

  #build(downloads) {
    const { model, edits } = this;
    const saved = ([name, make]) => [KINDS[name], this.#told(async () => {
      if (name !== "recording") await this.saving.flush();
      return save(await make(), filename(this.title, name));
    })];
    const copied = this.#told(async () => {
      await navigator.clipboard.writeText(this.file("txt"));
      return "Copied.";
    });
    this.said = h("p", { class: "said", role: "status" });
    this.seeking = search(this.text, (...given) => this.#replace(...given));
    this.undoing = button("↶", () => edits.undo(), { class: "small", "aria-label": "Undo" });
    this.redoing = button("↷", () => edits.redo(), { class: "small", "aria-label": "Redo" });
    const editing = button("Edit", () => {
      this.text.editing = !this.text.editing;
      editing.setAttribute("aria-pressed", String(this.text.editing));
      this.root.classList.toggle("editing", this.text.editing);
    }, { "aria-pressed": "false", title: "A click on a word edits it, as a double click always does" });
    this.doubting = button("", () => this.player.seek(Math.max(0, this.text.goToUnsure().start - 1), null), { class: "doubting" });
    this.player.root.prepend(h("div", { class: "news" }, this.said, this.saving.root));
    this.summary = h("p", { class: "summary" });
    // Browsers provide a clipboard in secure contexts only.
    const copying = navigator.clipboard && model.words.length ? button("Copy", copied, { class: "copy" }) : null;
    this.root = h(
      "div",
      { class: "viewer", onkeydown: (event) => this.#pressed(event) },
      this.summary,
      warned(model.warnings),
      h(
        "div",
        { class: "toolbar" },
        this.seeking.root,
        h("div", { class: "tools" }, editing, this.undoing, this.redoing, copying, menu("Download", downloads.map(saved))),
      ),
      h("div", { class: "cast" }, this.people.root, this.doubting),
      this.text.root,
      this.player.root,
    );
  }

  #pressed(event) {
    const field = event.target.closest("input:not([type=range]), textarea");
    if (field || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
    if (event.shiftKey) this.edits.redo();
    else this.edits.undo();
    event.preventDefault();
  }
}

function warned(notices) {
  if (!notices.length) return null;
  const title = notices.length > 1 ? `${notices.length} warnings about this transcript` : "A warning about this transcript";
  const lines = notices.map(({ message }) => h("li", { dir: "auto" }, message));
  const icon = h("span", { class: "icon", "aria-hidden": "true" }, "!");
  return h("section", { class: "warnings", "aria-label": "Warnings" }, h("h2", {}, icon, title), h("ul", {}, lines));
}

// Removes characters that file systems do not allow; letters of all scripts stay.
function filename(title, name) {
  const { stem, ending } = title.match(FILE).groups;
  const clean = [...stem.replace(/[<>:"/\\|?*\p{Cc}\p{Cs}\u202a-\u202e\u2066-\u2069]+/gu, "_")].slice(0, 120).join("").replace(/^[ .]+|[ .]+$/g, "") || "transcript";
  return name === "recording" ? clean + (ending || "") : `${clean}.${name}`;
}

export function save(made, name) {
  const url = made instanceof Blob ? URL.createObjectURL(made) : made;
  h("a", { href: url, download: name }).click();
  if (url !== made) setTimeout(() => URL.revokeObjectURL(url), 60000);
}
