// A transcript as the page shows it, from any JSON format: forescribe's own, verbose_json, and
// diarized_json next to either.
//
//   {duration, language, segments, words, speakers, suggestions, spans, warnings, figures, settings}
//
// `own` of a segment is the one that it is made of, `sure` the confidence of its speaker, 0 to 1, or null.
// `suggestions` are {speaker, name, score}: who a speaker may be, by the similarity of the voices.
// `doubt` of a segment is the reason why its text may be wrong, or null.
// A word is {text, lead, start, end, sure, sources, segment, first, last}: `lead` is the white space before
// it, `sure` its probability or null, and `first` to `last` are the words that are highlighted while it is
// played: the word itself, or its whole segment if words have no times.

const SPACELESS = /^(zh|ja|th|lo|my|yue|chinese|japanese|thai|lao|myanmar|cantonese)$/;

export function spacedIn(language) {
  return !SPACELESS.test(language || "");
}

// The segments with their words, from any JSON format.
export function segmentsOf(data, diarized = null) {
  const told = diarized ? diarized.segments : data.segments || [];
  const segments = told.map((segment) => ({
    start: segment.start,
    end: segment.end,
    text: segment.text,
    speaker: segment.speaker ?? null,
    sure: segment.speaker_confidence ?? null,
    doubt: segment.doubt || null,
    words: segment.words || null,
  }));
  if (segments.every((segment) => segment.words === null)) {
    const flat = data.words || (data.segments || []).flatMap((segment) => segment.words || []);
    deal(segments, flat);
  }
  return segments;
}

// `segments` of `segmentsOf`, corrected or not; speakers that were `merged` count as others.
export function modelOf(data, segments, merged = {}) {
  const words = [];
  const spaced = spacedIn(data.language);
  const shown = segments.map((own) => ({ ...own, speaker: merged[own.speaker] ?? own.speaker, own }));
  shown.forEach((segment, index) => spell(segment, index, words, spaced));
  return {
    duration: data.duration ?? Math.max(0, ...segments.map((segment) => segment.end)),
    language: data.language || null,
    segments: shown,
    words,
    speakers: [...new Set(shown.map((segment) => segment.speaker).filter(Boolean))],
    suggestions: likely(data.settings?.diarization || {}),
    spans: data.coverage?.spans || [],
    warnings: data.warnings || [],
    figures: data.speculation || data.stats || {},
    settings: data.settings || {},
  };
}

// Of files that others have written too, so anything may be there.
function likely({ matches, links }) {
  const listed = [matches, links].filter(Array.isArray).flat();
  return listed.filter((match) => match && !match.sure && typeof match.name === "string" && Number.isFinite(match.score));
}

// Assigns the words of a flat list to their segments by their text, as times may touch.
function deal(segments, flat) {
  let next = 0;
  for (const segment of segments) {
    let at = 0;
    const own = [];
    while (next < flat.length) {
      const text = flat[next].word.trim();
      const found = segment.text.indexOf(text, at);
      if (found < 0 || segment.text.slice(at, found).trim()) break;
      at = found + text.length;
      own.push(flat[next++]);
    }
    segment.words = own.length && !segment.text.slice(at).trim() ? own : null;
    if (segment.words === null) next -= own.length;
  }
}

function spell(segment, index, words, spaced) {
  const first = words.length;
  const opening = spaced && first ? " " : ""; // for segments that come without their leading space
  let at = 0;
  if (segment.words) {
    for (const word of segment.words) {
      const text = word.word.trim();
      const found = Math.max(at, segment.text.indexOf(text, at));
      const n = words.length;
      const lead = segment.text.slice(at, found) || (n === first ? opening : "");
      at = found + text.length;
      const sources = word.sources || [];
      const sure = word.probability ?? null;
      words.push({ text, lead, start: word.start, end: word.end, sure, sources, segment: index, first: n, last: n });
    }
    return;
  }
  const { start, end } = segment;
  for (const [, space, text] of segment.text.matchAll(/(\s*)(\S+)/g)) {
    const lead = space || opening;
    words.push({ text, lead, start, end, sure: null, sources: [], segment: index, first, last: first });
  }
  for (let n = first; n < words.length; n++) words[n].last = words.length - 1;
}

// The last index in an ascending list whose value is at most `value`; -1 if all are greater.
export function lastUpTo(rising, value) {
  let [low, high] = [0, rising.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Paragraphs: consecutive segments of one speaker, [[segment index, ...], ...].
export function paragraphsOf(model, longest = 60, pause = 2) {
  const counts = new Map();
  for (const word of model.words) counts.set(word.segment, (counts.get(word.segment) || 0) + 1);
  const found = [];
  let size = 0;
  model.segments.forEach((segment, index) => {
    const before = model.segments[index - 1];
    const fresh =
      !before || before.speaker !== segment.speaker || segment.start - before.end > pause || size >= longest;
    if (fresh) {
      found.push([]);
      size = 0;
    }
    found.at(-1).push(index);
    size += counts.get(index) || 0;
  });
  return found;
}

// The source of a word, which has one colour: the first of these that any of its tokens has.
export function writerOf(word) {
  return ["correction", "bonus", "plain", "accepted"].find((who) => word.sources.includes(who)) || null;
}
