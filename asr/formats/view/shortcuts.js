// Keyboard shortcuts of the whole page, and the dialog that lists them. They are single letters, so users of
// speech input, or who press keys by accident, can turn them off (WCAG 2.1.4).
import { h } from "./dom.js";

const SWITCH = "forescribe.shortcuts";

const TEXT = [
  ["← →", "previous, next word"],
  ["↑ ↓", "previous, next paragraph"],
  ["Home End", "first, last word"],
  ["Enter", "play the word; in the search: next place"],
  ["Space", "play or pause"],
];

const WRITING = [
  ["Enter", "keep the text"],
  ["Escape", "leave it as it was"],
  ["Ctrl Enter", "split at the cursor"],
  ["Alt K", "play or pause"],
  ["Alt J", "3 seconds back"],
];

// `actions` are [key, what, run] or [keys as shown, what, run(key), pattern]. Returns {root, button}: the dialog, and the button that opens it.
export function shortcuts(actions) {
  const on = h("input", { type: "checkbox", checked: !off(), onchange: () => keep(!on.checked) });
  const row = ([keys, what]) => h("tr", {}, h("th", { scope: "row" }, keys.split(" ").map((key) => h("kbd", {}, key))), h("td", {}, what));
  const table = (name, rows) => h("table", {}, h("caption", {}, name), h("tbody", {}, rows.map(row)));
  const root = h(
    "dialog",
    { class: "shortcuts", "aria-label": "Keyboard shortcuts" },
    h("h2", {}, "Keyboard shortcuts"),
    h(
      "div",
      { class: "tables" },
      table("Everywhere", [...actions, ["?", "this list"]]),
      h("div", {}, table("In the text", TEXT), table("While editing", WRITING)),
    ),
    h("label", { class: "check" }, on, " Keys of one letter work everywhere"),
    h("button", { type: "button", class: "main", onclick: () => root.close() }, "Close"),
  );
  const button = h("button", { type: "button", class: "keys", "aria-label": "Keyboard shortcuts", onclick: () => root.showModal() }, "?");
  const pressed = (event) => {
    if (!root.isConnected) return document.removeEventListener("keydown", pressed);
    if (root.open || event.defaultPrevented || event.altKey) return;
    if (event.target.closest?.("input:not([type=range], [type=checkbox], [type=radio]), select, textarea, dialog, [role=menu]")) return;
    const withCtrl = event.ctrlKey || event.metaKey; // of our keys, undo and redo are usual with it
    if (withCtrl ? !/^z$/i.test(event.key) : off()) return;
    if (event.key === "?") root.showModal();
    else {
      const found = actions.find(([key, , , pattern]) => (pattern ? pattern.test(event.key) : key === event.key));
      if (!found) return;
      found[2](event.key);
    }
    event.preventDefault();
  };
  document.addEventListener("keydown", pressed);
  return { root, button };
}

function off() {
  try {
    return localStorage.getItem(SWITCH) === "off";
  } catch {
    return false;
  }
}

function keep(isOff) {
  try {
    if (isOff) localStorage.setItem(SWITCH, "off");
    else localStorage.removeItem(SWITCH);
  } catch {
    // without storage the setting is not kept
  }
}
