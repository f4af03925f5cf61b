// What is shown of a recording, and how files are written: kept in this browser.
import { h } from "./dom.js";
import { PLAIN } from "./formats.js";
import { closing } from "./menu.js";

const VIEW = "forescribe.view";
const DEFAULTS = { limit: 0.5, captions: false, writers: false, rules: PLAIN };

export class Options {
  constructor() {
    this.now = { ...DEFAULTS };
    try {
      const kept = JSON.parse(localStorage.getItem(VIEW)) || {};
      for (const name of Object.keys(DEFAULTS)) if (typeof kept[name] === typeof DEFAULTS[name] && kept[name]) this.now[name] = kept[name];
      const { width, count, speakers } = this.now.rules;
      this.now.rules = { width: whole(width), count: whole(width) && whole(count), speakers: speakers !== false };
      if (typeof kept.limit === "number") this.now.limit = kept.limit;
    } catch {
      this.now = { ...DEFAULTS }; // nothing kept, or nothing that we wrote
    }
    this.listeners = [];
  }

  set(news) {
    this.now = { ...this.now, ...news };
    try {
      localStorage.setItem(VIEW, JSON.stringify(this.now));
    } catch {
      // it holds for this page
    }
    for (const listener of this.listeners) listener(this.now);
  }
}

// A menu of the view; `expert` is whether there is something to show about tokens.
export function viewMenu(options, { expert, doubts }) {
  const { limit, captions, writers } = options.now;
  const limits = [[0, "none"], [0.3, "below 30 %"], [0.5, "below 50 %"], [0.7, "below 70 %"]];
  const select = h(
    "select",
    { onchange: () => options.set({ limit: Number(select.value) }) },
    limits.map(([value, name]) => h("option", { value, selected: value === limit }, name)),
  );
  const box = (name, checked, text) => {
    const input = h("input", { type: "checkbox", checked, onchange: () => options.set({ [name]: input.checked }) });
    options.listeners.push((now) => (input.checked = now[name]));
    return h("label", { class: "check" }, input, ` ${text}`);
  };
  const root = h(
    "details",
    { class: "menu view" },
    h("summary", { class: "opens" }, "View"),
    h(
      "div",
      { class: "panel" },
      doubts ? h("label", {}, "Mark doubtful words ", select) : null,
      box("captions", captions, "Captions over the picture"),
      expert
        ? h("fieldset", {}, h("legend", {}, "Expert"), box("writers", writers, "Who wrote it: words coloured by the step that wrote them"))
        : null,
    ),
  );
  closing(root);
  return root;
}

// The dialog of what files look like.
export function fileOptions(options) {
  const { rules } = options.now;
  const number = (name, value, most) => h("input", { type: "number", name, min: 1, max: most, inputmode: "numeric", placeholder: "any", value });
  const width = number("width", rules.width, 500);
  const count = number("count", rules.count, 10);
  const speakers = h("input", { type: "checkbox", checked: rules.speakers });
  const apart = () => (count.disabled = !width.value);
  width.addEventListener("input", apart);
  apart();
  const keep = () => {
    if (!form.reportValidity()) return;
    options.set({ rules: { width: whole(width.value), count: whole(width.value) && whole(count.value), speakers: speakers.checked } });
    root.close();
  };
  const form = h(
    "form",
    { method: "dialog", class: "fields", onsubmit: (event) => (event.preventDefault(), keep()) },
    h("label", {}, "Characters in a line of subtitles ", width),
    h("label", {}, "Lines at a time ", count),
    h("label", { class: "check" }, speakers, " Names of speakers"),
    h("p", { class: "note" }, "For text, subtitles and captions. 42 characters and 2 lines are usual for videos."),
    h("div", { class: "row" }, h("button", { type: "submit", class: "main" }, "Keep"), h("button", { type: "button", onclick: () => root.close() }, "Cancel")),
  );
  const root = h("dialog", { class: "dialog", "aria-label": "Settings of files" }, h("h2", {}, "Settings of files"), form);
  return root;
}

// A positive whole number, or null.
function whole(value) {
  const number = Number(value);
  return Number.isInteger(number) && number > 0 ? number : null;
}
