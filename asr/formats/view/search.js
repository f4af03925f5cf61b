// Search in the text, and replace what is found.
import { h } from "./dom.js";

// `replace(text, by, whole)` returns how many places it has replaced. Returns {root, row, field, again}: the
// search, the row for replacing, and what searches again once the text has changed.
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
    for (const step of steps) step.hidden = !count;
  };
  const field = h("input", {
    type: "search",
    placeholder: "Search",
    "aria-label": "Search in the transcript",
    oninput: again,
    onkeydown: (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      go(event.shiftKey ? -1 : 1);
    },
  });
  const steps = [
    h("button", { type: "button", class: "small", hidden: true, "aria-label": "Previous place", onclick: () => go(-1) }, "↑"),
    h("button", { type: "button", class: "small", hidden: true, "aria-label": "Next place", onclick: () => go(1) }, "↓"),
  ];
  const opener = h(
    "button",
    { type: "button", class: "replaces", "aria-expanded": "false", onclick: () => open(row.hidden) },
    "Replace",
  );
  const by = h("input", { type: "text", placeholder: "Replace with", "aria-label": "Replace with", autocomplete: "off", dir: "auto" });
  const whole = h("input", { type: "checkbox" });
  const done = h("span", { class: "count", role: "status" });
  const run = (event) => {
    event.preventDefault();
    const number = replace(field.value, by.value, whole.checked);
    done.textContent = number === 1 ? "1 replaced" : `${number} replaced`;
    again();
  };
  const row = h(
    "form",
    { class: "replacing", hidden: true, "aria-label": "Replace", onsubmit: run },
    by,
    h("label", { class: "check" }, whole, " Whole words"),
    h("button", { type: "submit" }, "Replace all"),
    done,
  );
  const open = (shown) => {
    row.hidden = !shown;
    opener.setAttribute("aria-expanded", String(shown));
    if (shown) (field.value ? by : field).focus();
  };
  return { root: h("div", { class: "search", role: "search" }, field, said, steps, opener), row, field, again, open };
}
