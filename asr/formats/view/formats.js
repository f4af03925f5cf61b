// The transcript as files where no server makes them, with the names given to speakers: the same bytes as
// formats/files.py gives if nothing was changed (a test compares them).

const RATE = 16000; // of the samples that times are rounded to

// Without speakers a line for each segment, else for each turn.
export function txt(model, names) {
  const turns = [];
  for (const { speaker, text } of model.segments.filter((segment) => line(segment.text))) {
    if (model.speakers.length && turns.at(-1)?.speaker === speaker) turns.at(-1).text += text;
    else turns.push({ speaker, text });
  }
  return turns.map(({ speaker, text }) => `${speaker ? `${names.filed(speaker)}: ` : ""}${line(text)}\n`).join("");
}

export function srt(model, names) {
  const cue = ({ start, end, speaker, text }, n) =>
    `${n + 1}\n${stamp(start)} --> ${stamp(end)}\n${noArrow((speaker ? `[${speaker}]: ` : "") + text)}\n\n`;
  return cues(model, names).map(cue).join("");
}

// Segments as subtitles, in milliseconds: in order, not empty, no overlaps, none after the end of the audio.
function cues(model, names) {
  const limit = Math.max(1, ms(model.duration));
  const parts = model.segments
    .map(({ start, end, text, speaker }) => ({ start: ms(start), end: ms(end), text: line(text), speaker: speaker ? names.filed(speaker) : null }))
    .filter(({ text }) => text)
    .sort((a, b) => a.start - b.start);
  const found = [];
  parts.forEach((part, n) => {
    const next = n + 1 < parts.length ? parts[n + 1].start : limit;
    let start = Math.max(part.start, found.length ? found.at(-1).end : 0);
    if (start >= limit && found.length) {
      found.at(-1).text += ` ${part.text}`;
      return;
    }
    start = Math.min(start, limit - 1);
    let end = Math.min(part.end, limit);
    if (next > start) end = Math.min(end, next);
    found.push({ ...part, start, end: Math.max(end, start + 1) });
  });
  return found;
}

function ms(seconds) {
  return Math.floor((Math.round(seconds * RATE) * 1000 + RATE / 2) / RATE);
}

function stamp(total) {
  const two = (n) => String(n).padStart(2, "0");
  const parts = [Math.floor(total / 3600000), Math.floor(total / 60000) % 60, Math.floor(total / 1000) % 60];
  return `${parts.map(two).join(":")},${String(total % 1000).padStart(3, "0")}`;
}

function line(text) {
  const parts = text.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
  return parts.map((part) => part.trim()).filter(Boolean).join(" ");
}

function noArrow(text) {
  while (text.includes("-->")) text = text.replaceAll("-->", "->");
  return text;
}
