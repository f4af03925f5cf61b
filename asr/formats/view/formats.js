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
  return turns.map(({ speaker, text }) => `${model.speakers.length ? `${names.shown(speaker)}: ` : ""}${line(text)}\n`).join("");
}

// Segments as subtitles: in order, not empty, each ends where the next begins.
export function srt(model, names) {
  const cues = model.segments.filter((segment) => line(segment.text));
  let end = 0;
  return cues.map(({ speaker, text, ...times }, n) => {
    const start = Math.max(ms(times.start), end);
    end = Math.max(Math.min(ms(times.end), ms(cues[n + 1]?.start ?? model.duration)), start + 1);
    const name = model.speakers.length ? `[${names.shown(speaker)}]: ` : "";
    return `${n + 1}\n${stamp(start)} --> ${stamp(end)}\n${(name + line(text)).replace(/-{2,}>/g, "->")}\n\n`;
  }).join("");
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
