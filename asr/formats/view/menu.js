// A menu: a <details> with buttons, or with a form, that closes when it is left.
import { button, h } from "./dom.js";

// Entries are [name, run].
export function menu(name, entries) {
  const chosen = (run) => () => ((root.open = false), run());
  const items = entries.map(([label, run]) => button(label, chosen(run), { role: "menuitem" }));
  const root = h("details", { class: "menu" }, h("summary", { class: "opens" }, name), h("div", { role: "menu", "aria-label": name }, items));
  closing(root);
  return root;
}

// Escape returns the focus to the summary; a click or focus elsewhere leaves it there.
export function closing(root) {
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !root.open) return;
    root.open = false;
    root.querySelector("summary").focus();
  });
  const left = ({ target }) => {
    if (!root.contains(target)) root.open = false;
  };
  for (const name of ["pointerdown", "focusin"]) document.addEventListener(name, left);
}
