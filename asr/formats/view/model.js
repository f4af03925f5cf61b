// A transcript as the page shows it, from the JSON that `forescribe transcribe` writes.
//
//   {duration, language, segments, words, speakers, failed, warnings}
//
// `own` of a segment is the one that it is made of, `sure` the confidence of its speaker, 0 to 1, or null, `doubt`
// the reason why its text may be wrong, or null, and `cut` whether somebody has split it from the one before.
// A word is {text, lead, start, end, sure, segment, first, last}: `lead` is the white space before it, `sure` its
// probability or null, and `first` to `last` are the words that are highlighted while it is played: the word
// itself, or its whole segment if words have no times.

const SPACELESS = /^(zh|ja|th|lo|my|yue)$/;

export function spacedIn(language) {
  return !SPACELESS.test(language || "");
}

export function segmentsOf(data) {
  return data.segments.map((segment) => ({
    start: segment.start,
    end: segment.end,
    text: segment.text,
    speaker: segment.speaker ?? null,
    sure: segment.speaker_confidence ?? null,
    doubt: segment.doubt || null,
    words: segment.words || null,
  }));
}

// `segments` of `segmentsOf`, corrected or not.
export function modelOf(data, segments) {
  const words = [];
  const spaced = spacedIn(data.language);
  const starts = new Set(data.segments.map(({ start }) => start));
  const shown = segments.map((own) => ({ ...own, own, cut: !starts.has(own.start) }));
  shown.forEach((segment, index) => spell(segment, index, words, spaced));
  const failed = (data.coverage?.spans || []).filter(({ state }) => state === "failed");
  return {
    duration: data.duration ?? Math.max(0, ...segments.map((segment) => segment.end)),
    language: data.language || null,
    segments: shown,
    words,
    speakers: [...new Set(shown.map((segment) => segment.speaker).filter(Boolean))],
    failed: failed.reduce((sum, { start, end }) => sum + end - start, 0), // seconds
    warnings: data.warnings || [],
  };
}

function spell(segment, index, words, spaced) {
  const first = words.length;
  const opening = spaced && first ? " " : ""; // for segments that come without their leading space
  if (segment.words) {
    let at = 0;
    for (const word of segment.words) {
      const text = word.word.trim();
      const found = Math.max(at, segment.text.indexOf(text, at));
      const n = words.length;
      const lead = segment.text.slice(at, found) || (n === first ? opening : "");
      at = found + text.length;
      const sure = word.probability ?? null;
      words.push({ text, lead, start: word.start, end: word.end, sure, segment: index, first: n, last: n });
    }
    return;
  }
  const { start, end } = segment;
  for (const [, space, text] of segment.text.matchAll(/(\s*)(\S+)/g)) {
    words.push({ text, lead: space || opening, start, end, sure: null, segment: index, first, last: first });
  }
  for (let n = first; n < words.length; n++) words[n].last = words.length - 1;
}

// The last index in an ascending list whose value is at most `value`; -1 if all are greater.
export function lastUpTo(rising, value) {
  return rising.findLastIndex((one) => one <= value);
}

// Paragraphs: consecutive segments of one speaker, [[segment index, ...], ...]; with `cuts` parted where they are.
export function paragraphsOf(segments, cuts = false) {
  const found = [];
  let size = 0;
  segments.forEach((segment, index) => {
    const before = segments[index - 1];
    const same = before && before.speaker === segment.speaker && !(cuts && segment.cut);
    if (!same || segment.start - before.end > 2 || size >= 60) {
      found.push([]);
      size = 0;
    }
    found.at(-1).push(index);
    size += segment.text.trim().split(/\s+/).length;
  });
  return found;
}
