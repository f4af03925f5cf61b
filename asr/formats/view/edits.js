// Corrections of a transcript: a list of segments and the names of speakers, with undo and redo.
//
//   const edits = new Edits(segments, spaced);
//   edits.do(edits.withText(3, "Good day."), "Corrected at 0:34");
//   edits.packed()                                // for `PUT /v1/jobs/{id}/corrections`
//
// States never change: an edit makes a new list, in which untouched segments and words are the same objects.
// `packed` relies on that: what is still the original's is a number.

const MOST_STEPS = 500;

export class Edits {
  // `segments` as `segmentsOf` makes them; `spaced` is whether the language puts spaces between words.
  constructor(segments, spaced = true) {
    this.original = { segments, names: {} };
    this.spaced = spaced;
    this.state = this.original;
    this.past = []; // {state, note, kind}: what `undo` goes back to, and what was done then
    this.future = [];
    this.listeners = []; // called with a note after each change
    this.places = new Map(segments.map((segment, n) => [segment, n]));
    this.words = new Map(segments.flatMap((segment) => segment.words || []).map((word, n) => [word, n]));
  }

  // An edit; does nothing if it is `null` or changes nothing. `kind`: edits of one kind that follow each
  // other, as letters of a name do, are one step.
  do(changes, note, kind = "") {
    if (!changes || Object.entries(changes).every(([name, value]) => same(this.state[name], value))) return false;
    const last = this.past.at(-1);
    if (!(kind && last?.kind === kind && !this.future.length)) this.past.push({ state: this.state, note, kind });
    else last.note = note;
    if (this.past.length > MOST_STEPS) this.past.shift();
    this.future = [];
    this.#turn({ ...this.state, ...changes }, note);
    return true;
  }

  undo() {
    return this.#moved(this.past, this.future, true);
  }

  redo() {
    return this.#moved(this.future, this.past, false);
  }

  #moved(from, to, undone) {
    const step = from.pop();
    if (!step) return null;
    const { state, note } = step;
    to.push(Object.assign(step, { state: this.state, undone }));
    this.#turn(state, undone ? `Undone: ${note}` : note);
    return note;
  }

  #turn(state, note) {
    this.state = state;
    for (const listener of this.listeners) listener(note);
  }

  // -- edits: each returns what `do` takes -----------------------------------------------------------

  // The text of a segment; its words keep their times where they stay, others share those that they replace.
  withText(index, text) {
    return { segments: this.#each((segment, n) => (n === index ? this.#tidied(index, text) : segment.text)) };
  }

  // Cuts a segment before its word number `n`.
  withSplit(index, n) {
    return { segments: cut(this.state.segments, index, n) };
  }

  // The words from one to the other are a speaker's; each is [segment, number in it].
  withWords([first, n], [last, m], speaker) {
    const { segments } = this.state;
    if (segments.slice(first, last + 1).every((segment) => segment.speaker === speaker)) return null;
    const more = n > 0 ? 1 : 0;
    return this.withSpeaker((_, k) => k >= first + more && k <= last + more, speaker, cut(cut(segments, last, m + 1), first, n));
  }

  // Those that are `chosen(segment, n)` are a speaker's.
  withSpeaker(chosen, speaker, segments = this.state.segments) {
    return { segments: segments.map((one, n) => (chosen(one, n) && one.speaker !== speaker ? { ...one, speaker, sure: null } : one)) };
  }

  withName(label, name) {
    const names = { ...this.state.names };
    if (name.trim()) names[label] = shortened(name.trim(), 200);
    else delete names[label];
    return { names };
  }

  // All that one speaker said was said by the other.
  withMerge(from, into) {
    const { [from]: name, ...names } = this.state.names;
    return { ...this.withSpeaker((segment) => segment.speaker === from, into), names: name && !names[into] ? { ...names, [into]: name } : names };
  }

  // Replaces all places in the text that are equal but for case; returns [changes, count].
  withReplaced(text, by) {
    const wanted = form(text.trim());
    if (!wanted) return [null, 0];
    const pattern = new RegExp(wanted, "giu");
    let count = 0;
    const segments = this.#each((segment) => segment.text.replace(pattern, () => (count++, by)));
    return [{ segments }, count];
  }

  // Another text of a segment, and in all others what was corrected in it, where the words are whole ones; returns
  // [changes, corrections, count of places]. A correction is [heard, meant].
  withEverywhere(index, text) {
    const { spaced, state } = this;
    const pairs = this.pairs(index, text);
    if (!pairs.length) return [null, pairs, 0];
    const forms = pairs.map(([heard]) => form(heard)).sort((a, b) => b.length - a.length);
    const pattern = new RegExp(spaced ? whole(forms.join("|")) : forms.join("|"), "giu");
    const meant = new Map(pairs.map(([heard, own]) => [caseless(heard), own]));
    let count = 0;
    const written = (heard) => (count++, cased(meant.get(caseless(heard)) ?? heard, heard));
    // What was written here may hold the words that were heard, and stays.
    const again = !pairs.some(([, own]) => own.search(pattern) >= 0);
    const segments = this.#each((segment, n) => {
      if (n !== index) return segment.text.replace(pattern, written);
      count += pairs.length;
      const own = this.#tidied(index, text);
      return again ? own.replace(pattern, written) : own;
    });
    return [{ segments }, pairs, count];
  }

  // What another text of a segment corrects.
  pairs(index, text) {
    return pairsOf(this.state.segments[index].text, text.replace(/[\s\0]+/g, " "), this.spaced);
  }

  // What begins a sentence keeps its capital, and marks whose word has gone join the word before.
  #tidied(index, text) {
    const { segments } = this.state;
    const [old, fresh] = [segments[index].text, text].map((whole) => whole.match(/[^\s\0]+/g) || []);
    const [head, tail] = alike(old, fresh);
    const [gone, last] = [old.slice(head, old.length - tail), fresh.length - tail - 1];
    if (!this.spaced || !gone.length) return fresh.join(" ");
    const marks = last >= head && !bare(fresh[last]) && bare(gone.at(-1)) && gone.at(-1).endsWith(fresh[last]);
    if (marks && last > 0) fresh[last - 1] = fresh[last - 1].replace(/[,;:]+$/, "") + fresh[last];
    if (marks) fresh.splice(last, 1);
    const before = head ? old[head - 1] : (segments[index - 1]?.text ?? ".");
    if (head < fresh.length && /[.!?…]["'”’)]*\s*$/.test(before)) fresh[head] = begun(fresh[head], gone[0]);
    return fresh.join(" ");
  }

  // The segments with the text that `written(segment, n)` gives each; without those that it leaves none.
  #each(written) {
    return this.state.segments.flatMap((segment, n) => {
      const clean = written(segment, n).replace(/[\s\0]+/g, " ").trim();
      if (clean === segment.text.replace(/\s+/g, " ").trim()) return [segment];
      return clean ? [this.#rewritten(segment, clean)] : [];
    });
  }

  // A label that nobody has.
  newSpeaker(labels) {
    for (let n = labels.length; ; n++) {
      const label = `Speaker ${String.fromCharCode(65 + (n % 26))}${n < 26 ? "" : Math.floor(n / 26)}`;
      if (!labels.includes(label)) return label;
    }
  }

  #rewritten(segment, clean) {
    const [lead] = segment.text.match(/^\s*/); // joins it to the one before
    return { ...segment, text: lead + clean, doubt: null, words: segment.words && realigned(segment, parts(clean, this.spaced), lead) };
  }

  // -- to and from the server ------------------------------------------------------------------------

  packed(note = "") {
    const { segments, names } = this.state;
    const word = (one) => this.words.get(one) ?? [one.word, one.start, one.end];
    const made = ({ start, end, text, speaker, words }) => ({ start, end, text, speaker, words: words && words.map(word) });
    const segment = (one) => this.places.get(one) ?? made(one);
    return { segments: segments.map(segment), names, merged: {}, note: shortened(note, 200) };
  }

  // The state of what was packed, with speakers that were `merged` as one. Throws TypeError if it belongs to
  // another transcript.
  unpacked({ segments, names, merged = {} }) {
    const [places, words] = [[...this.places.keys()], [...this.words.keys()]];
    const known = (found) => {
      if (found === undefined) throw new TypeError("The corrections belong to another transcript.");
      return found;
    };
    const word = (one) => (Array.isArray(one) ? { word: one[0], start: one[1], end: one[2] } : known(words[one]));
    const segment = (one) =>
      typeof one === "number" ? known(places[one]) : { sure: null, doubt: null, ...one, words: one.words && one.words.map(word) };
    const joined = (one) => (one.speaker in merged ? { ...one, speaker: merged[one.speaker] } : one);
    return { segments: segments.map((one) => joined(segment(one))), names: { ...names } };
  }

  // What was saved before: no step, and nothing to save.
  open(packed) {
    this.state = this.unpacked(packed);
  }
}

function same(one, other) {
  if (!Array.isArray(one)) return JSON.stringify(one) === JSON.stringify(other);
  return one.length === other.length && one.every((item, n) => item === other[n]);
}

// The segments with one of them cut before its word number `n`, if that parts it.
function cut(segments, index, n) {
  const segment = segments[index];
  const words = segment.words || evenly(parts(segment.text, true), segment.start, segment.end);
  if (n <= 0 || n >= words.length) return segments;
  const [one, two] = [words.slice(0, n), words.slice(n)];
  const piece = (own, start, end) => ({ ...segment, start, end, text: own.map((word) => word.word).join(""), words: segment.words && own });
  const [end, start] = [Math.max(one.at(-1).end, segment.start), Math.min(two[0].start, segment.end)];
  return segments.toSpliced(index, 1, piece(one, segment.start, end), piece(two, Math.max(start, segment.start), segment.end));
}

// How many words are the same at the beginning and at the end.
export function alike(old, fresh, equal = (one, other) => one === other) {
  const least = Math.min(old.length, fresh.length);
  let [head, tail] = [0, 0];
  while (head < least && equal(old[head], fresh[head])) head++;
  while (tail < least - head && equal(old.at(-1 - tail), fresh.at(-1 - tail))) tail++;
  return [head, tail];
}

// The words of a text with the white space before each.
export function parts(text, spaced) {
  if (spaced || !("Segmenter" in Intl)) return text.match(/\s*\S+/g) || [];
  const found = [];
  for (const { segment, isWordLike } of new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)) {
    if (isWordLike || !found.length) found.push(segment);
    else found[found.length - 1] += segment; // punctuation, as in the recognizer's words
  }
  return found;
}

// The new words of a segment: equal ones at its beginning and end are the old ones, those between share their time.
function realigned(segment, texts, first) {
  const old = segment.words;
  const fresh = texts.map((text, n) => (n ? text : first + text.trim()));
  const kept = (a, b) => (old[a].word === fresh[b] ? old[a] : { ...old[a], word: fresh[b] });
  const [head, tail] = alike(old, fresh, (word, text) => word.word.trim() === text.trim());
  const [gone, come] = [old.slice(head, old.length - tail), fresh.slice(head, fresh.length - tail)];
  const start = gone.length ? gone[0].start : (old[head - 1]?.end ?? segment.start);
  const end = gone.length ? gone.at(-1).end : (old[head]?.start ?? segment.end);
  const one = gone.length === come.length;
  const made = one ? gone.map((word, n) => (word.word.trim() === come[n].trim() ? kept(head + n, head + n) : { word: come[n], start: word.start, end: word.end })) : evenly(come, start, Math.max(start, end));
  const behind = fresh.length - tail;
  return fresh.map((_, n) => (n < head ? kept(n, n) : n < behind ? made[n - head] : kept(n - fresh.length + old.length, n)));
}

// Words that share a time by their lengths.
function evenly(texts, start, end) {
  const total = texts.reduce((sum, text) => sum + text.trim().length, 0) || 1;
  let done = 0;
  return texts.map((text) => {
    const from = start + ((end - start) * done) / total;
    done += text.trim().length;
    return { word: text, start: from, end: start + ((end - start) * done) / total };
  });
}

// -- corrections everywhere: words as `forescribe transcribe --replace` has them ------------------------------

const LETTER = "[\\p{L}\\p{M}\\p{N}_]";
const MARKS = /^[\s.,;:!?…"'“”‘’()[\]{}«»¿¡。，、！？]+|[\s.,;:!?…"'“”‘’()[\]{}«»¿¡。，、！？]+$/g;

function form(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s+/g, "\\s+");
}

// A part of can't, 1,300 or well-known is no word; of Porter's it is.
function whole(forms) {
  return `(?<!${LETTER})(?<!${LETTER}['’-])(?<!\\p{N}[.,:])(?:${forms})(?!${LETTER})(?!['’-](?!s(?!${LETTER}))${LETTER})(?![.,:]\\p{N})`;
}

function caseless(words) {
  return words.normalize("NFC").toLowerCase().replace(/\s+/g, " ");
}

// With the capitals of what was heard, where none are given.
function cased(meant, heard) {
  const [first, upper] = [[...heard][0], heard.toUpperCase()];
  if (meant !== meant.toLowerCase() || first === first.toLowerCase()) return meant;
  if (heard.length > 1 && heard === upper) return meant.toUpperCase();
  return meant.slice(0, 1).toUpperCase() + meant.slice(1);
}

// At most so many characters, of which none is parted.
export function shortened(text, most) {
  return [...text].slice(0, most).join("");
}

export function bare(words) {
  return words.replace(MARKS, "");
}

// With the capital of what it stands in place of, unless the capital is what was corrected.
function begun(written, heard) {
  const [one, other] = [written, heard].map(bare);
  const [first = ""] = other;
  if (first === first.toLowerCase() || one !== one.toLowerCase() || one === other.toLowerCase()) return written;
  return written.replace(/\p{L}/u, (letter) => letter.toUpperCase());
}

// What stands in place of other words, [heard, meant]; where as many words came as went, each run of them apart.
function pairsOf(before, after, spaced) {
  const [old, fresh] = [before, after].map((text) => parts(text, spaced).map((word) => word.trim()));
  const [head, tail] = alike(old, fresh);
  const [gone, come] = [old.slice(head, old.length - tail), fresh.slice(head, fresh.length - tail)];
  const runs = gone.length === come.length ? [] : [[gone, come]];
  for (let n = 0, open = false; gone.length === come.length && n < gone.length; n++) {
    const differs = gone[n] !== come[n];
    if (differs && !open) runs.push([[], []]);
    if (differs) [gone, come].forEach((words, k) => runs.at(-1)[k].push(words[n]));
    open = differs;
  }
  const said = ([heard, meant]) => /[\p{L}\p{N}]/u.test(heard) && heard !== meant && !/^[#/]|=>/.test(heard) && !meant.includes("=>");
  return runs.map((run) => run.map((words) => bare(words.join(spaced ? " " : "")))).filter(said);
}
