// The view of one recording: text, speakers, corrections, search, player. Page and report share it.
import { docx } from "./docx.js";
import { button, clock, h } from "./dom.js";
import { Editor } from "./editor.js";
import { Edits, shortened } from "./edits.js";
import { md, srt, txt, vtt } from "./formats.js";
import { menu } from "./menu.js";
import { lastUpTo, modelOf, segmentsOf, spacedIn } from "./model.js";
import { Names } from "./names.js";
import { people } from "./people.js";
import { Player } from "./player.js";
import { Saving } from "./saving.js";
import { search } from "./search.js";
import { selection } from "./selection.js";
import { Transcript } from "./transcript.js";
import { versions } from "./versions.js";

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
    this.closed = new AbortController();
    const { signal } = this.closed;
    this.saving = new Saving(this.edits, keeper, () => this.editor.save(false), signal);
    this.versions = versions(this.edits, keeper);
    this.player = new Player({ src, note });
    const sound = Object.fromEntries(["seek", "toggle", "pause", "back"].map((name) => [name, (...given) => this.player[name](...given)]));
    this.text = new Transcript(this.names, {
      ...sound,
      edit: (n) => this.#edit(n),
      speaker: (...given) => this.#give(...given),
    });
    this.editor = new Editor(this.text, {
      ...sound,
      correct: (index, text) => this.#correct(index, text),
      everywhere: (index, text) => this.#everywhere(index, text),
      remembers: Boolean(remember),
      signal,
      split: (index, text, letters) => this.#correct(index, text) && this.#split(index, letters),
    });
    this.player.ontime = (at, playing) => this.text.at(at, playing);
    this.people = people(this.names, {
      named: () => this.saving.flush(),
      name: (label, name) => this.edits.do(this.edits.withName(label, name), `Named ${name.trim() || this.names.shown(label)}`, `name ${label}`),
      merge: (from, into) => this.edits.do(this.edits.withMerge(from, into), `Merged ${this.names.shown(from)} with ${this.names.shown(into)}`),
    });
    this.selection = selection(this.text, this.names, (...given) => this.#give(...given), signal);
    document.addEventListener("keydown", (event) => this.#pressed(event), { signal });
    this.#build(downloads);
    this.edits.listeners.push((note) => this.#changed(note));
    this.#changed("");
  }

  close() {
    this.editor.save(false);
    this.saving.flush(); // goes on behind another recording
    this.player.stop();
    this.closed.abort();
  }

  // A file of a page without a server.
  file(name) {
    const made = { docx, md, txt, srt, vtt, json: () => JSON.stringify(this.#corrected()) }[name];
    return made(this.model, this.names, this.title.match(FILE).groups.stem);
  }

  #corrected() {
    const { data, edits, names } = this;
    const near = (at) => data.segments.findLast(({ start }) => start <= at) || data.segments[0];
    const segments = this.model.segments.map(({ own, speaker, start, end, text }, id) => {
      const made = () => (({ window, window_start }) => ({ window, window_start, start, end, text, tokens: [], words: own.words }))(near(start));
      const old = data.segments[edits.places.get(own)] || made();
      const who = speaker && { speaker: names.shown(speaker) };
      return { ...old, id, ...who, ...(old.words && { words: old.words.map((word) => ({ ...word, ...who })) }) };
    });
    const heard = new Set(data.segments.map(({ start, speaker }) => `${start} ${speaker || ""}`));
    const named = this.model.segments.every(({ start, speaker }) => heard.has(`${start} ${speaker || ""}`)); // at most
    const said = segments.filter(({ speaker }) => speaker).map(({ start, end, speaker }) => ({ start, end, speaker }));
    const turns = data.turns && (named ? data.turns.map((turn) => ({ ...turn, speaker: names.shown(turn.speaker) })) : said);
    return { ...data, text: segments.map(({ text }) => text).join("").trim(), segments, ...(turns && { turns }) };
  }

  // -- corrections -----------------------------------------------------------------------------------

  // Opens the field of a word, which has another number where one that was open has changed the words before.
  #edit(n) {
    const start = this.model.words[n]?.start;
    this.editor.save(false);
    if (this.model.words[n]?.start !== start) n = Math.max(0, lastUpTo(this.text.starts, start));
    this.editor.open(n);
  }

  // Returns whether the segment is still there.
  #correct(index, text) {
    const { edits } = this;
    const told = toldOf(edits.pairs(index, text));
    const done = text.trim() ? "Corrected" : "Deleted";
    edits.do(edits.withText(index, text), `${done} at ${clock(edits.state.segments[index].start)}${told && `: ${told}`}`);
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
    const where = `${count} ${count === 1 ? "place" : "places"}`;
    this.edits.do(changes, `${toldOf(pairs)}: corrected at ${where}${this.remember ? ", and remembered for new recordings" : ""}`);
  }

  // Cuts the segment behind so many letters.
  #split(index, letters) {
    const n = this.text.wordBehind(index, letters);
    const made = this.edits.withSplit(index, n - this.text.members[index][0]);
    const done = this.edits.do(made, `Split at ${clock(this.model.words[n].start)}`);
    this.text.focus(n);
    if (!done) this.#say("There is nothing to split here.");
  }

  // Words are a speaker's.
  #give(first, last, choice) {
    const { words } = this.model;
    const label = choice === "new" ? this.edits.newSpeaker(this.names.labels) : choice;
    const places = [first, last].map((n) => [words[n].segment, n - this.text.members[words[n].segment][0]]);
    this.edits.do(this.edits.withWords(...places, label), `${this.names.shown(label)} speaks at ${clock(words[first].start)}`);
    this.text.focusName(first);
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
    const focused = document.activeElement?.closest?.(".transcript :is(.w, .name)");
    const word = focused?.closest(".paragraph").querySelector(".w")?.dataset.n;
    const place = text.model?.words[focused?.matches(".name") ? word : text.cursor]?.start;
    this.model = modelOf(this.data, edits.state.segments);
    text.show(this.model);
    this.selection.root.hidden = true; // its words have other numbers
    if (focused && place !== undefined) text.focusAt(place);
    if (focused?.matches(".name")) text.focusName(text.cursor);
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
    return () => {
      this.#say("");
      return Promise.resolve().then(work).then((text = "") => this.#say(text), (error) => this.#say(error.message, true));
    };
  }

  #build(downloads) {
    const { model, edits } = this;
    const saved = ([name, make]) => [KINDS[name], this.#told(async () => {
      if (name !== "recording") await this.saving.settled();
      return save(await make(), filename(this.title, name));
    })];
    const copied = this.#told(() => navigator.clipboard.writeText(this.file("txt")).then(() => "Copied."));
    this.said = h("p", { class: "said", role: "status" });
    this.seeking = search(this.text, (...given) => this.#replace(...given));
    this.undoing = button("↶", () => edits.undo(), { class: "small", "aria-label": "Undo" });
    this.redoing = button("↷", () => edits.redo(), { class: "small", "aria-label": "Redo" });
    const earlier = button("Versions", this.#told(() => this.saving.settled().then(() => this.versions.open())));
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
    const tools = h("div", { class: "tools" }, editing, this.undoing, this.redoing, earlier, copying, menu("Download", downloads.map(saved)));
    const toolbar = h("div", { class: "toolbar" }, this.seeking.root, tools);
    const cast = h("div", { class: "cast" }, this.people.root, this.doubting);
    const shown = [this.text, this.selection, this.versions, this.player].map(({ root }) => root);
    this.root = h("div", { class: "viewer" }, this.summary, warned(model.warnings), toolbar, cast, shown);
  }

  // Undo and redo, but of letters where somebody writes: names are corrections, other fields have their own.
  #pressed(event) {
    const written = event.target.closest?.(":read-write:not(.person input), dialog");
    const z = event.key.toLowerCase() === "z" || (event.code === "KeyZ" && !/[a-z]/i.test(event.key));
    if (written || !(event.ctrlKey || event.metaKey) || !z) return;
    if (this.editor.index >= 0) this.editor.field.focus(), document.execCommand(event.shiftKey ? "redo" : "undo");
    else if (event.shiftKey) this.edits.redo();
    else this.edits.undo();
    event.preventDefault();
  }
}

function toldOf(pairs) {
  const told = pairs.map(([heard, meant]) => `${heard} → ${meant || "nothing"}`).join(", ");
  return told.length > 90 ? `${shortened(told, 89)}…` : told;
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
