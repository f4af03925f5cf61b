// What became of every second of the recording, as a bar.
import { clock, lasting } from "./clock.js";
import { h } from "./dom.js";

const STATES = [
  ["decoded", "decoded"],
  ["silent", "left out as silence"],
  ["failed", "failed"],
];

export function coverage(model) {
  const total = { decoded: 0, silent: 0, failed: 0 };
  for (const span of model.spans) total[span.state] += span.end - span.start;
  if (!model.spans.length) return null;
  const said = h("p", { class: "key" });
  for (const [state, name] of STATES.filter(([state]) => total[state] > 0 || state === "decoded")) {
    const swatch = h("span", { class: `swatch ${state}`, "aria-hidden": "true" });
    said.append(h("span", {}, swatch, `${lasting(total[state])} ${name}`));
  }
  const spans = model.spans.map(({ start, end, state, reason }) => [start, end, state, reason || state]);
  const look = `coverage${total.failed ? " broken" : ""}`;
  return h("div", { class: look }, h("div", { class: "strip states", "aria-hidden": "true" }, marks(spans, model.duration)), said);
}

// Spans [start, end, class, what] of a bar that is hidden from screen readers, as the text says the same.
export function marks(spans, duration) {
  return spans.map(([start, end, look, what]) => {
    const part = h("span", { class: look, title: `${clock(start)} to ${clock(end)}: ${what}` });
    part.style.left = `${(100 * start) / duration}%`;
    part.style.width = `${(100 * Math.max(end - start, 0)) / duration}%`;
    return part;
  });
}
