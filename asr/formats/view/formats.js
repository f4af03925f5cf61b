// The transcript as files, with the names given to speakers: the same bytes as formats/files.py gives if
// nothing was changed (a test compares them).
import { blocksOf, RATE } from "./lines.js";

// `rules` are {width, count, speakers}: characters of a line and lines at a time in subtitles, or null, and
// whether speakers are named.
export const PLAIN = { width: null, count: null, speakers: true };

export function files(model, names, rules = PLAIN) {
  const shown = told(model, rules);
  return {
    txt: () => txt(shown, names),
    srt: () => srt(shown, names, rules),
    vtt: () => vtt(shown, names, rules),
    tsv: () => tsv(shown, names),
  };
}

// What is on the screen at a time: {start, end, text, speaker}, in milliseconds.
export function cuesOf(model, names, rules) {
  return cues(told(model, rules), names, rules);
}

function told(model, { speakers }) {
  return speakers ? model : { ...model, segments: model.segments.map((segment) => ({ ...segment, speaker: null })) };
}

function txt(model, names) {
  const spoken = model.segments.filter((segment) => line(segment.text));
  if (!spoken.some((segment) => segment.speaker)) {
    return spoken.map((segment) => `${line(segment.text)}\n`).join("");
  }
  const turns = [];
  for (const segment of spoken) {
    if (turns.at(-1)?.speaker === segment.speaker) turns.at(-1).text += segment.text;
    else turns.push({ speaker: segment.speaker, text: segment.text });
  }
  return turns
    .map(({ speaker, text }) => (speaker ? `${names.filed(speaker)}: ${line(text)}\n` : `${line(text)}\n`))
    .join("");
}

function srt(model, names, rules) {
  return cues(model, names, rules)
    .map((cue, n) => {
      const label = cue.speaker ? `[${cue.speaker}]: ` : "";
      const span = `${stamp(cue.start, ",", true)} --> ${stamp(cue.end, ",", true)}`;
      return `${n + 1}\n${span}\n${noArrow(label)}${noArrow(cue.text)}\n\n`;
    })
    .join("");
}

function vtt(model, names, rules) {
  const body = cues(model, names, rules).map((cue) => {
    const voice = cue.speaker ? `<v ${escaped(cue.speaker).replaceAll(">", "&gt;")}>` : "";
    return `${stamp(cue.start, ".")} --> ${stamp(cue.end, ".")}\n${voice}${escaped(noArrow(cue.text))}\n\n`;
  });
  return ["WEBVTT\n\n", ...body].join("");
}

function tsv(model, names) {
  const rows = cues(model, names, PLAIN).map((cue) => {
    const text = cue.speaker ? `[${cue.speaker}]: ${cue.text}` : cue.text;
    return `${cue.start}\t${cue.end}\t${text.replaceAll("\t", " ")}\n`;
  });
  return ["start\tend\ttext\n", ...rows].join("");
}

// Segments or blocks of lines as subtitles: in order, not empty, no overlaps, none after the end of the audio.
function cues(model, names, { width, count }) {
  const limit = Math.max(1, ms(model.duration));
  const whole = model.segments.map(({ start, end, text, speaker }) => ({ start, end, text: line(text), speaker }));
  const parts = (width ? blocksOf(model, width, count) : whole)
    .filter(({ text }) => text)
    .sort((a, b) => a.start - b.start)
    .map(({ start, end, text, speaker }) => ({
      start: ms(start),
      end: ms(end),
      text,
      speaker: speaker ? names.filed(speaker) : null,
    }));
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

function stamp(total, point, hours = false) {
  const two = (n) => String(n).padStart(2, "0");
  const [h, m] = [Math.floor(total / 3600000), Math.floor(total / 60000) % 60];
  const prefix = hours || h ? `${two(h)}:` : "";
  const fraction = String(total % 1000).padStart(3, "0");
  return `${prefix}${two(m)}:${two(Math.floor(total / 1000) % 60)}${point}${fraction}`;
}

function line(text) {
  const parts = text.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
  return parts.map((part) => part.trim()).filter(Boolean).join(" ");
}

function noArrow(text) {
  while (text.includes("-->")) text = text.replaceAll("-->", "->");
  return text;
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
