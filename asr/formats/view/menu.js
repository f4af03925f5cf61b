// A menu that opens below a button and closes when it loses the focus.
import { h } from "./dom.js";
import { roving } from "./roving.js";

let made = 0;

// Entries are [name, run].
export function menu(name, entries) {
  const id = `menu-${++made}`;
  const items = entries.map(([label, run]) =>
    h("button", { type: "button", role: "menuitem", tabindex: "-1", onclick: () => (turn(false, true), run()) }, label),
  );
  const list = h("div", { id, role: "menu", "aria-label": name, hidden: true }, items);
  const button = h(
    "button",
    { type: "button", class: "opens", "aria-haspopup": "menu", "aria-expanded": "false", "aria-controls": id, onclick: () => turn(list.hidden, list.hidden) },
    name,
  );
  const root = h("div", { class: "menu" }, button, list);
  const turn = (open, focus) => {
    list.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (focus) (open ? items[0] : button).focus();
  };
  roving(list, () => items);
  button.addEventListener("keydown", (event) => {
    if (!["ArrowDown", "ArrowUp"].includes(event.key)) return;
    event.preventDefault();
    turn(true, true);
    if (event.key === "ArrowUp") items.at(-1).focus();
  });
  leaving(root, () => !list.hidden, (back) => turn(false, back));
  return root;
}

// A menu below an element that has none of its own yet: it is there while it is open. Entries are
// [name, run, class].
export function popup(anchor, name, entries) {
  const close = (back) => {
    list.remove();
    anchor.setAttribute("aria-expanded", "false");
    if (back) anchor.focus({ preventScroll: true });
  };
  const items = entries.map(([label, run, look = ""]) =>
    h("button", { type: "button", role: "menuitem", tabindex: "-1", class: look, onclick: () => (close(true), run()) }, label),
  );
  const list = h("div", { class: "popup", role: "menu", "aria-label": name }, items);
  anchor.after(list);
  anchor.setAttribute("aria-expanded", "true");
  roving(list, () => items);
  leaving(list, () => list.isConnected, close);
  items[0].focus({ preventScroll: true });
}

// A <details> that closes as a menu does.
export function closing(details) {
  const summary = details.querySelector("summary");
  leaving(details, () => details.open, (back) => {
    details.open = false;
    if (back) summary.focus();
  });
}

// Escape returns the focus to the button; a click or focus elsewhere leaves it there.
function leaving(root, open, close) {
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !open()) return;
    event.stopPropagation();
    close(true);
  });
  root.addEventListener("focusout", (event) => {
    if (open() && event.relatedTarget && !root.contains(event.relatedTarget)) close(false);
  });
  const outside = (event) => {
    if (!root.isConnected) return document.removeEventListener("pointerdown", outside);
    if (open() && !root.contains(event.target)) close(false);
  };
  document.addEventListener("pointerdown", outside);
}
