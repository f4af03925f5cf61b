// Search in the text, and replace what is found.
import { button, h } from "./dom.js";

// `replace(text, by)` returns how many places it has replaced. Returns {root, again, show}: the search, what
// searches again once the text has changed, and what goes to the place nearest to a time, and returns its own.
export function search(text, replace) {
  let [count, at] = [0, -1];
  const said = h("span", { class: "count", role: "status" });
  const go = (step) => {
    if (!count) return;
    at = (at + step + count) % count;
    text.goTo(at);
    said.textContent = `${at + 1} of ${count}`;
  };
  const again = () => {
    [count, at] = [text.find(field.value), -1];
    said.textContent = field.value.trim() ? (count ? `${count} found` : "not found") : "";
    for (const part of found) part.hidden = !count;
  };
  const show = (value, seconds) => {
    field.value = value;
    again();
    if (!count) return seconds;
    const when = ([first]) => text.model.words[first].start;
    const away = (hit) => Math.abs(when(hit) - seconds);
    at = text.hits.reduce((best, hit, n) => (away(hit) < away(text.hits[best]) ? n : best), 0);
    go(0);
    return when(text.hits[at]);
  };
  const pressed = (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    go(event.shiftKey ? -1 : 1);
  };
  const field = h("input", { type: "search", placeholder: "Search", "aria-label": "Search in the transcript", oninput: again, onkeydown: pressed });
  const by = h("input", { type: "text", placeholder: "Replace with", "aria-label": "Replace with", autocomplete: "off", dir: "auto" });
  const found = [
    button("↑", () => go(-1), { class: "small", "aria-label": "Previous place" }),
    button("↓", () => go(1), { class: "small", "aria-label": "Next place" }),
    by,
    button("Replace all", () => {
      const number = replace(field.value, by.value);
      again();
      said.textContent = `${number} replaced`;
    }),
  ];
  again();
  return { root: h("div", { class: "search", role: "search" }, field, said, found), again: () => field.value && again(), show };
}
