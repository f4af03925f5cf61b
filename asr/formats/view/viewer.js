// The view of one recording: text, speakers, corrections, search, player. Page and report share it.
import { band } from "./band.js";
import { captions } from "./captions.js";
import { coverage } from "./coverage.js";
import { clock } from "./clock.js";
import { h } from "./dom.js";
import { Editor } from "./editor.js";
import { Edits } from "./edits.js";
import { facts, figures, known, languageName } from "./figures.js";
import { cuesOf, files } from "./formats.js";
import { menu, popup } from "./menu.js";
import { modelOf, segmentsOf, spacedIn } from "./model.js";
import { Names } from "./names.js";
import { fileOptions, Options, viewMenu } from "./options.js";
import { people } from "./people.js";
import { Player } from "./player.js";
import { Saving } from "./saving.js";
import { search } from "./search.js";
import { shortcuts } from "./shortcuts.js";
import { Transcript } from "./transcript.js";
import { warnings } from "./warnings.js";

const KINDS = {
  txt: "Text (.txt)",
  srt: "Subtitles (.srt)",
  vtt: "Subtitles (.vtt)",
  tsv: "Table (.tsv)",
  json: "Everything (.json)",
  verbose_json: "As OpenAI's verbose_json",
  diarized_json: "As OpenAI's diarized_json",
  rttm: "Turns of speakers (.rttm)",
  recording: "The recording",
};

// `data` and `diarized` are the JSON of the result; `keeper` keeps corrections (saving.js), and `kept` are those
// it has. `downloads` are additional [name, make]; `make` returns a Blob, a URL, or a promise of either.
export class Viewer {
  constructor(data, diarized, { title, keeper, kept = null, src = null, note = "", downloads = [] }) {
    Object.assign(this, { data, diarized, title, keeper });
    this.edits = new Edits(segmentsOf(data, diarized), spacedIn(data.language));
    if (kept) this.edits.open(kept);
    this.model = this.#modelOf(this.edits.state);
    this.names = new Names(this.edits);
    this.options = new Options();
    this.saving = new Saving(this.edits, keeper);
    this.player = new Player(this.model.duration, { src, note });
    this.said = h("p", { class: "said", role: "status" });
    this.text = new Transcript(this.names, {
      seek: (seconds) => this.player.seek(seconds),
      toggle: () => this.player.toggle(),
      edit: (n) => this.edit(n),
      speaker: (button, indices) => this.#choose(button, indices),
    });
    this.editor = new Editor(this.text, {
      correct: (index, text) => this.#correct(index, text),
      split: (index, text, place) => this.#correct(index, text) && this.split(index, place),
      join: (index, text) => this.#correct(index, text) && this.join(index),
      toggle: () => this.player.toggle(),
      back: () => this.player.step(-1),
    });
    this.stage = captions(this.player.media);
    this.band = band(this.names, (seconds) => this.player.seek(seconds, false));
    this.player.ontime = (at, playing) => {
      this.text.at(at, playing);
      this.band.at(at);
      if (!this.stage.root.hidden) this.stage.at(at);
    };
    this.people = people(this.names, this.model.suggestions, {
      name: (label, name) => this.do(this.edits.withName(label, name), `Named ${name.trim() || this.names.shown(label)}`, `name ${label}`),
      merge: (from, into) => this.do(this.edits.withMerge(from, into), `Merged ${this.names.shown(from)} with ${this.names.shown(into)}`),
    });
    this.original = false; // the original is shown
    this.#build(downloads);
    this.edits.listeners.push((said) => this.#changed(said));
    this.options.listeners.push(() => this.#turned());
    this.#changed("");
    this.#turned();
  }

  close() {
    this.editor.keep(false);
    this.saving.flush();
    this.player.stop();
  }

  // The JSON of the result with the corrections, for pages whose server does not make it.
  corrected() {
    const { data, diarized, edits, names } = this;
    if (!edits.changed) return data;
    const first = diarized ? [] : data.segments;
    const segments = this.model.segments.map(({ own, speaker, start, end, text }, id) => {
      const old = first[edits.places.get(own)] || { start, end, text, ...(own.words ? { words: own.words } : {}) };
      return { ...old, id, ...(speaker ? { speaker: names.filed(speaker) } : {}) };
    });
    return { ...data, text: segments.map(({ text }) => text).join("").trim(), segments };
  }

  // -- corrections -----------------------------------------------------------------------------------

  do(changes, note, kind) {
    if (this.original) this.showOriginal(false);
    return this.edits.do(changes, note, kind);
  }

  edit(n) {
    if (this.original) this.showOriginal(false);
    this.editor.open(Math.min(n, this.text.spans.length - 1));
  }

  // Cuts the segment before its word number `place`.
  split(index, place) {
    if (!this.do(this.edits.withSplit(index, place), `Split at ${this.edits.at(index)}`)) return this.#say("There is nothing to split here.");
    this.text.focus(this.text.members[index + 1][0]);
  }

  join(index) {
    if (!this.do(this.edits.withJoin(index), `Joined at ${this.edits.at(index)}`)) this.#say("There is no next part.");
    else this.text.focus(this.text.members[index][0]);
  }

  // The speaker of the chosen segments: number `n` of the list, or a new one.
  speak(n) {
    const labels = this.model.speakers;
    const label = labels[n] ?? (n === labels.length ? this.edits.newSpeaker(this.names.labels) : null);
    if (label !== null) this.#give(this.text.chosen, label);
  }

  undo() {
    const note = this.edits.undo();
    if (note === null) this.#say("Nothing to undo.");
  }

  redo() {
    const note = this.edits.redo();
    if (note === null) this.#say("Nothing to redo.");
  }

  // Shows what was recognized, which cannot be edited.
  showOriginal(on) {
    this.editor.keep(false);
    this.original = on && this.edits.changed;
    this.#draw();
    this.#say(this.original ? "This is the text as it was recognized." : "");
  }

  nextDoubt(step) {
    const word = this.text.goToUnsure(step);
    if (!word) return this.#say("No word is marked as doubtful.");
    this.player.seek(Math.max(0, word.start - 1), false);
  }

  // Returns whether the segment is still there.
  #correct(index, text) {
    const at = this.edits.at(index);
    const changes = this.edits.withText(index, text);
    if (changes) this.do(changes, text.trim() ? `Corrected at ${at}` : `Deleted at ${at}`);
    return text.trim() !== "";
  }

  #give(indices, label) {
    const at = indices.length ? this.edits.at(indices[0]) : "";
    this.do(this.edits.withSpeaker(indices, label), `Speaker at ${at}`);
  }

  #choose(button, indices) {
    if (this.original) return;
    const labels = this.model.speakers;
    const entries = labels.map((label) => [this.names.shown(label), () => this.#give(indices, label), `speaker-${this.names.colour(label)}`]);
    popup(button, "Speaker of this part", [...entries, ["A new speaker", () => this.speakAnew(indices)]]);
  }

  speakAnew(indices) {
    this.#give(indices, this.edits.newSpeaker(this.names.labels));
  }

  #replace(text, by, whole) {
    const [changes, count] = this.edits.withReplaced(text, by, { whole });
    if (count) this.do(changes, `Replaced ${text.trim()} ${count === 1 ? "once" : `${count} times`}`);
    return count;
  }

  // -- what is shown ---------------------------------------------------------------------------------

  #modelOf({ segments, merged }) {
    return modelOf(this.data, segments, merged);
  }

  #changed(said) {
    this.names.learn();
    this.#draw();
    if (said) this.#say(`${said}.`);
  }

  #draw() {
    const { edits, text } = this;
    const focused = document.activeElement?.closest?.(".transcript .w, .popup");
    const place = text.model?.words[text.cursor]?.start;
    this.model = this.#modelOf(this.original ? edits.original : edits.state);
    text.show(this.model);
    if (focused && place !== undefined) text.focusAt(place);
    this.people.show(this.original ? [] : this.model.speakers);
    this.band.show(this.model);
    this.summary.textContent = this.#summed();
    this.undoing.disabled = !edits.past.length;
    this.redoing.disabled = !edits.future.length;
    this.undoing.title = edits.past.length ? `Undo: ${edits.past.at(-1).note}` : "";
    this.redoing.title = edits.future.length ? `Redo: ${edits.future.at(-1).note}` : "";
    this.originalButton.hidden = !edits.changed;
    this.historyButton.hidden = !edits.changed && !this.keeper.history.length;
    this.originalButton.setAttribute("aria-pressed", String(this.original));
    this.root.classList.toggle("original", this.original);
    if (this.seeking.field.value) this.seeking.again();
    this.#captioned();
    this.#doubted();
  }

  #summed() {
    const { duration, language, speakers, words } = this.model;
    const count = (list, one, several) => (list.length ? `${list.length} ${list.length === 1 ? one : several}` : null);
    const told = [clock(duration), language && languageName(language), count(speakers, "speaker", "speakers"), count(words, "word", "words")];
    return told.filter(Boolean).join(" · ");
  }

  #turned() {
    const { limit, writers, captions: on } = this.options.now;
    this.text.mark(limit);
    this.root.dataset.view = writers && this.figured ? "writers" : "speakers";
    this.stage.turn(on);
    this.#captioned();
    this.#doubted();
  }

  #captioned() {
    if (!this.stage.root.hidden) this.stage.show(cuesOf(this.model, { filed: (label) => this.names.shown(label) }, this.options.now.rules));
  }

  #doubted() {
    const { length } = this.text.unsure;
    this.doubting.hidden = !length;
    this.doubting.textContent = `${length} doubtful ${length === 1 ? "word" : "words"} ↓`;
  }

  #say(text, bad = false) {
    this.said.textContent = text;
    this.said.classList.toggle("bad", bad);
  }

  // What was said disappears by and by, but for what went wrong.
  #appear() {
    clearTimeout(this.fading);
    this.news.classList.remove("passed");
    this.fading = setTimeout(() => this.news.classList.toggle("passed", !this.news.querySelector(".bad")), SAID_MS);
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

  #files() {
    return files(this.model, this.original ? { filed: (label) => label } : this.names, this.options.now.rules);
  }

  #history() {
    const entries = [...this.keeper.history].reverse().map(({ version, saved_at, note }) => [
      `${new Date(1000 * saved_at).toLocaleString([], { dateStyle: "short", timeStyle: "short" })} ${note || "Saved"}`,
      this.#told(async () => {
        const state = this.edits.unpacked(await this.keeper.version(version));
        this.do(state, `Back to version ${version}`);
      }),
    ]);
    const first = ["As it was recognized", () => this.do({ ...this.edits.original }, "Back to the original")];
    popup(this.historyButton, "Versions", [...entries, first]);
  }

  #build(downloads) {
    const { options, model, edits } = this;
    const button = (name, run, more = {}) => h("button", { type: "button", onclick: run, ...more }, name);
    const copied = this.#told(() => copy(this.#files().txt()));
    const saved = ([name, make]) => [KINDS[name] || name, this.#told(async () => {
      if (!["recording", ...OWN].includes(name)) await this.saving.flush();
      return save(await make(), filename(this.title, name));
    })];
    const own = OWN.map((name) => [name, () => new Blob([this.#files()[name]()], { type: "text/plain" })]);
    const dialog = fileOptions(options);
    const entries = [...own, ...downloads].map(saved);
    entries.splice(OWN.length, 0, ["Settings of files …", () => dialog.showModal()], ["Copy the text", copied]);
    this.figured = known(model) ? figures(model) : null;
    this.seeking = search(this.text, (...given) => this.#replace(...given));
    this.undoing = button("↶", () => this.undo(), { class: "small", "aria-label": "Undo" });
    this.redoing = button("↷", () => this.redo(), { class: "small", "aria-label": "Redo" });
    this.originalButton = button("Original", () => this.showOriginal(!this.original), { "aria-pressed": "false" });
    this.historyButton = button("Versions", () => this.#history(), { class: "opens", "aria-haspopup": "menu", "aria-expanded": "false" });
    const editing = button("Edit", () => {
      this.text.editing = !this.text.editing;
      editing.setAttribute("aria-pressed", String(this.text.editing));
      this.root.classList.toggle("editing", this.text.editing);
    }, { "aria-pressed": "false", title: "A click on a word edits it, as a double click always does" });
    this.doubting = button("", () => this.nextDoubt(1), { class: "doubting", title: "Key n" });
    const help = this.#shortcuts(copied);
    this.player.controls.append(help.button);
    this.news = h("div", { class: "news" }, this.said, this.saving.root);
    new MutationObserver(() => this.#appear()).observe(this.news, { childList: true, characterData: true, subtree: true });
    this.player.root.prepend(this.news, this.band.root);
    this.summary = h("span", {});
    const told = facts(model).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
    const covered = coverage(model);
    const about = h(
      "details",
      { class: "about", open: covered?.classList.contains("broken") },
      h("summary", {}, this.summary),
      told.length ? h("dl", { class: "facts" }, told) : null,
      covered,
    );
    this.root = h(
      "div",
      { class: "viewer", "data-view": "speakers" },
      about,
      warnings(model.warnings),
      h(
        "div",
        { class: "toolbar" },
        this.seeking.root,
        h("div", { class: "tools" }, editing, this.undoing, this.redoing),
        h(
          "div",
          { class: "tools" },
          viewMenu(options, { expert: Boolean(this.figured), doubts: model.words.some(({ sure }) => sure !== null) }),
          button("Copy", copied, { class: "copy", disabled: !model.words.length }),
          menu("Download", entries),
        ),
        this.seeking.row,
      ),
      this.stage.root,
      h("div", { class: "cast" }, this.people.root, h("div", { class: "tools" }, this.doubting, this.originalButton, h("span", { class: "anchored" }, this.historyButton))),
      this.figured,
      this.text.root,
      this.player.root,
      help.root,
      dialog,
    );
  }

  #shortcuts(copied) {
    const here = () => this.model.words[this.text.here];
    const member = (run) => () => here() && run(here().segment, this.text.here - this.text.members[here().segment][0]);
    return shortcuts([
      ["k", "play or pause", () => this.player.toggle()],
      ["j", "3 seconds back", () => this.player.step(-1)],
      ["l", "3 seconds on", () => this.player.step(1)],
      ["e", "edit the text at the cursor, or at what is played", () => this.edit(this.text.here)],
      ["n", "next doubtful word", () => this.nextDoubt(1)],
      ["N", "previous doubtful word", () => this.nextDoubt(-1)],
      ["s", "split before the word", member((index, place) => this.split(index, place))],
      ["m", "join with the next part", member((index) => this.join(index))],
      ["1 … 9", "speaker of this part, or of the selected ones", (key) => this.speak(Number(key) - 1), /^[1-9]$/],
      ["z", "undo", () => this.undo()],
      ["Z", "redo", () => this.redo()],
      ["o", "the original, and back", () => this.showOriginal(!this.original)],
      ["/", "search", () => this.seeking.field.focus()],
      ["r", "find and replace", () => this.seeking.open(true)],
      ["v", "captions", () => this.options.set({ captions: !this.options.now.captions })],
      ["c", "copy the text", copied],
    ]);
  }
}

const OWN = ["txt", "srt", "vtt", "tsv"];
const SAID_MS = 6000;

// Removes characters that file systems do not allow; letters of all scripts stay.
function filename(title, name) {
  const [, stem, ending] = title.match(/^(.*?)(\.[a-z0-9]{1,5})?$/is);
  const clean = [...stem.replace(/[<>:"/\\|?*\p{Cc}\p{Cs}\u202a-\u202e\u2066-\u2069]+/gu, "_")].slice(0, 120).join("").replace(/^[ .]+|[ .]+$/g, "") || "transcript";
  if (name === "recording") return clean + (ending || "");
  return name.includes("_") ? `${clean}.${name.split("_")[0]}.json` : `${clean}.${name}`;
}

function save(made, name) {
  const url = made instanceof Blob ? URL.createObjectURL(made) : made;
  const link = h("a", { href: url, download: name });
  link.click();
  if (url !== made) setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// Browsers provide a clipboard in secure contexts only; elsewhere the selection can be copied.
async function copy(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else {
    const [field, before] = [h("textarea", { class: "unseen", readonly: true }), document.activeElement];
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    before?.focus({ preventScroll: true });
    if (!done) throw new Error("The browser does not let this page copy: select the text instead.");
  }
  return "Copied.";
}
