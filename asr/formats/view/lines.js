// The words of subtitles in lines: blocks and lines are cut between words at the lowest total cost, as
// formats/subtitles.py does (a test compares them).

export const RATE = 16000; // of the samples that times are rounded to
const [LONG_PAUSE, PAUSE] = [3 * RATE, RATE / 4];
const SENTENCE_ENDS = [...".?!…。！？؟۔।"];
const CLAUSE_ENDS = [...",;:،；：，、–—"];
const CLOSING = new Set("\"')]}”’»›」』）");
const [CLAUSE_COST, PAUSE_COST, MIDST_COST, UNEVEN_COST, LINE_COST] = [0.4, 0.6, 1.2, 0.05, 100];

// {start, end, text, speaker} of each block of at most `count` lines (null: any) of `width` characters.
export function blocksOf(model, width, count) {
  const found = [];
  for (const { words, speaker, timed } of runs(model, count !== null)) {
    const layout = new Layout(words, width);
    const cuts = count !== null && timed ? layout.blocks(count) : [[0, words.length]];
    for (const [from, to] of cuts) {
      const lines = layout.lines(from, to).map(([a, b]) => words.slice(a, b).map(({ text, spaced }, n) => (n && spaced ? " " : "") + text).join(""));
      found.push({ start: words[from].start, end: words[to - 1].end, text: lines.join("\n"), speaker });
    }
  }
  return found;
}

// Words that may share a block; with `across`, those of several segments.
function* runs(model, across) {
  const members = model.segments.map(() => []);
  for (const word of model.words) members[word.segment].push(word);
  const ordered = model.segments
    .map((segment, n) => ({ segment, words: members[n] }))
    .filter(({ segment }) => segment.text.trim())
    .sort((a, b) => a.segment.start - b.segment.start);
  let run = null;
  for (const { segment, words } of ordered) {
    const timed = segment.words !== null && words.length > 0;
    if (run && (!across || !timed)) {
      yield run;
      run = null;
    }
    const own = timed
      ? words.map(({ text, start, end }, n) => ({ text: text.split(/\s+/).join(" "), spaced: /^\s/.test(segment.words[n].word), start, end }))
      : segment.text.trim().split(/\s+/).map((text) => ({ text, spaced: true, start: segment.start, end: segment.end }));
    if (!timed) {
      yield { words: own, speaker: segment.speaker, timed };
      continue;
    }
    for (const word of own.filter(({ text }) => text)) {
      const last = run?.words.at(-1);
      if (run && (samples(word.start) - samples(last.end) > LONG_PAUSE || run.speaker !== segment.speaker)) {
        yield run;
        run = null;
      }
      run ||= { words: [], speaker: segment.speaker, timed };
      run.words.push(word);
    }
  }
  if (run) yield run;
}

class Layout {
  constructor(words, width) {
    Object.assign(this, { words, width });
    this.offsets = [0];
    for (const { text, spaced } of words) this.offsets.push(this.offsets.at(-1) + [...text].length + spaced);
    this.costs = words.map((word, n) => (n + 1 < words.length ? endCost(word, words[n + 1]) : 0));
  }

  size(from, to) {
    return this.offsets[to] - this.offsets[from] - this.words[from].spaced;
  }

  fits(from, to) {
    return to - from === 1 || this.size(from, to) <= this.width;
  }

  cost(from, to, each, capacity) {
    const empty = 1 - Math.min(1, this.size(from, to) / capacity);
    return each + this.costs[to - 1] + UNEVEN_COST * empty * empty;
  }

  lines(from, to) {
    const ends = function* (begin) {
      for (let last = begin + 1; last <= to && this.fits(begin, last); last++) yield last;
    }.bind(this);
    return partition(from, to, ends, (a, b) => this.cost(a, b, LINE_COST, this.width));
  }

  // As many words as fit in `count` lines that are filled one after the other.
  blocks(count) {
    const total = this.words.length;
    const ends = function* (begin) {
      let [line, lines] = [begin, 1];
      for (let last = begin + 1; last <= total; last++) {
        if (!this.fits(line, last)) [line, lines] = [last - 1, lines + 1];
        if (lines > count) return;
        yield last;
      }
    }.bind(this);
    return partition(0, total, ends, (a, b) => this.cost(a, b, 1, this.width * count));
  }
}

function endCost(word, next) {
  const letters = [...word.text];
  while (letters.length && CLOSING.has(letters.at(-1))) letters.pop();
  if (SENTENCE_ENDS.includes(letters.at(-1))) return 0;
  if (CLAUSE_ENDS.includes(letters.at(-1))) return CLAUSE_COST;
  return samples(next.start) - samples(word.end) >= PAUSE ? PAUSE_COST : MIDST_COST;
}

// Cuts first..last into parts at the lowest cost; `ends(start)` are the possible ends of a part.
function partition(first, last, ends, cost) {
  const best = new Map([[first, 0]]);
  const before = new Map();
  for (let from = first; from < last; from++) {
    for (const to of ends(from)) {
      const price = best.get(from) + cost(from, to);
      if (price < (best.get(to) ?? Infinity)) {
        best.set(to, price);
        before.set(to, from);
      }
    }
  }
  const cuts = [last];
  while (cuts.at(-1) > first) cuts.push(before.get(cuts.at(-1)));
  cuts.reverse();
  return cuts.slice(1).map((to, n) => [cuts[n], to]);
}

function samples(seconds) {
  return Math.round(seconds * RATE);
}
