// What became of every second, and who speaks when: bars as long as the recording.
import { clock, lasting } from "./clock.js";
import { h } from "./dom.js";

const STATES = [
  ["decoded", "decoded"],
  ["silent", "left out as silence"],
  ["failed", "failed"],
];

export function coverage(model, names) {
  const total = { decoded: 0, silent: 0, failed: 0 };
  for (const span of model.spans) total[span.state] += span.end - span.start;
  const told = STATES.filter(([state]) => total[state] > 0 || state === "decoded");
  const said = h("p", { class: "key" });
  for (const [state, name] of told) {
    const swatch = h("span", { class: `swatch ${state}`, "aria-hidden": "true" });
    said.append(h("span", {}, swatch, `${lasting(total[state])} ${name}`));
  }
  const root = h("div", { class: "coverage" });
  if (model.speakers.length) {
    const turns = model.segments
      .filter((segment) => segment.speaker)
      .map(({ start, end, speaker }) => [start, end, `speaker-${names.colour(speaker)}`, speaker]);
    root.append(strip(turns, model.duration, "floor", (label) => names.shown(label)));
  }
  if (model.spans.length) {
    const spans = model.spans.map(({ start, end, state, reason }) => [start, end, state, reason || state]);
    root.append(strip(spans, model.duration, "states", (reason) => reason), said);
  }
  return root;
}

// Spans [start, end, class, what]; hidden from screen readers, as the text beside it says the same.
function strip(spans, duration, kind, named) {
  const root = h("div", { class: `strip ${kind}`, "aria-hidden": "true" });
  for (const [start, end, look, what] of spans) {
    const part = h("span", { class: look, title: `${clock(start)} to ${clock(end)}: ${named(what)}` });
    part.style.left = `${(100 * start) / duration}%`;
    part.style.width = `${(100 * Math.max(end - start, 0)) / duration}%`;
    root.append(part);
  }
  return root;
}
