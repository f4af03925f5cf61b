// The transcript as files where no server makes them, with the names given to speakers: the same bytes as
// formats/files.py gives if nothing was changed (a test compares them).
import { clock } from "./dom.js";
import { paragraphsOf } from "./model.js";

const RATE = 16000; // of the samples that times are rounded to

// Without speakers a line for each segment, else for each turn.
export function txt(model, names) {
  const turns = [];
  for (const { speaker, text } of model.segments.filter((segment) => line(segment.text))) {
    if (model.speakers.length && turns.at(-1)?.speaker === speaker) turns.at(-1).text += text;
    else turns.push({ speaker, text });
  }
  return turns.map(({ speaker, text }) => `${model.speakers.length ? `${names.shown(speaker)}: ` : ""}${line(text)}\n`).join("");
}

export function srt(model, names) {
  return cues(model, names).map(({ start, end, name, text }, n) => {
    const times = `${stamp(start, ",")} --> ${stamp(end, ",")}`;
    return `${n + 1}\n${times}\n${arrowless((name && `[${name}]: `) + text)}\n\n`;
  }).join("");
}

export function vtt(model, names) {
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const documents = cues(model, names).map(({ start, end, name, text }) => {
    const times = [start, end].map((at) => stamp(at, ".").replace(/^00:/, "")).join(" --> ");
    const voice = name && arrowless(`<v ${escaped(name).replace(/>/g, "&gt;")}>`);
    return `${times}\n${voice}${escaped(arrowless(text))}\n\n`;
  });
  return ["WEBVTT\n\n", ...documents].join("");
}

export function md(model, names, title) {
  const escaped = (text) => text.replace(/[\\`*_[\]<&~]/g, "\\$&");
  const lines = paragraphs(model, names).map(({ name, at, text }) => `${name && `**${escaped(name)}** `}(${at}) ${escaped(text)}\n`);
  return [`# ${escaped(title)}\n`, ...lines].join("\n");
}

// Paragraphs with their times, and the names of speakers where they change.
export function paragraphs(model, names) {
  const segments = model.segments.filter((segment) => line(segment.text));
  let before = "";
  return paragraphsOf(segments).map((indices) => {
    const { speaker, start } = segments[indices[0]];
    const name = model.speakers.length ? names.shown(speaker) : "";
    const changed = name === before ? "" : name;
    before = name;
    return { name: changed, at: clock(start), text: line(indices.map((index) => segments[index].text).join("")) };
  });
}

// Segments as subtitles, in milliseconds: in order, not empty, each ends where the next begins.
function cues(model, names) {
  const kept = model.segments.filter((segment) => line(segment.text));
  let end = 0;
  return kept.map(({ speaker, text, ...times }, n) => {
    const start = Math.max(ms(times.start), end);
    end = Math.max(Math.min(ms(times.end), ms(kept[n + 1]?.start ?? model.duration)), start + 1);
    return { start, end, name: model.speakers.length ? names.shown(speaker) : "", text: line(text) };
  });
}

function arrowless(text) {
  return text.replace(/-{2,}>/g, "->"); // parsers take an arrow for a line of times
}

function ms(seconds) {
  return Math.floor((Math.round(seconds * RATE) * 1000 + RATE / 2) / RATE);
}

function stamp(total, point) {
  const two = (n) => String(n).padStart(2, "0");
  const parts = [Math.floor(total / 3600000), Math.floor(total / 60000) % 60, Math.floor(total / 1000) % 60];
  return `${parts.map(two).join(":")}${point}${String(total % 1000).padStart(3, "0")}`;
}

function line(text) {
  const parts = text.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
  return parts.map((part) => part.trim()).filter(Boolean).join(" ");
}
