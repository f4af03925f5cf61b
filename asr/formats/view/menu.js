// A menu: a button and the list that it opens, which browsers close at Escape and at a click elsewhere.
import { button, h } from "./dom.js";

// Entries are [name, run].
export function menu(name, entries, kind = null) {
  const chosen = (run) => () => (list.hidePopover(), run());
  const items = entries.map(([label, run]) => button(label, chosen(run), { role: "menuitem" }));
  const list = h("div", { class: "menu", popover: "auto", role: "menu", "aria-label": name }, items);
  const opener = button(name, null, { class: "opens", "aria-haspopup": "menu" });
  opener.popoverTargetElement = list;
  return h("span", { class: kind }, opener, list);
}
