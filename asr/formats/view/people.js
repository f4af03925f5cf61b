// The speakers: their names, and which of them are one person.
import { h } from "./dom.js";
import { menu } from "./menu.js";

// Returns {root, show(labels)}. `act` has `name(label, name)`, `named()` once a name is complete, `merge(from, into)`.
export function people(names, act) {
  const root = h("section", { class: "people", "aria-label": "Speakers" });
  let drawn = "";
  const person = (label) => {
    const told = { placeholder: names.shown(label), "data-label": label, "aria-label": `Name of ${label}` };
    const oninput = (event) => act.name(label, event.target.value);
    const field = h("input", { type: "text", dir: "auto", autocomplete: "off", spellcheck: "false", maxlength: 200, oninput, onchange: act.named, ...told });
    const letter = h("span", { class: "letter", "aria-hidden": "true" }, names.letter(label));
    return h("label", { class: `person speaker-${names.colour(label)}` }, letter, field);
  };
  const merging = (labels) => {
    const pairs = labels.flatMap((from) => labels.filter((into) => into !== from).map((into) => [from, into]));
    return menu("Same person", pairs.map((pair) => [pair.map((label) => names.shown(label)).join(" is "), () => act.merge(...pair)]), "merges");
  };
  const show = (labels) => {
    const { activeElement: focused } = document;
    const again = root.contains(focused) && (focused.dataset.label ? `[data-label="${CSS.escape(focused.dataset.label)}"]` : ".merges .opens");
    if (labels.join("\n") !== drawn) {
      drawn = labels.join("\n");
      root.replaceChildren(...labels.map(person), ...(labels.length > 1 ? [merging(labels)] : []));
    } else root.querySelector(".merges")?.replaceWith(merging(labels));
    root.hidden = !labels.length;
    for (const field of root.querySelectorAll("input")) {
      const name = names.edits.state.names[field.dataset.label] || "";
      if (field.value.trim() !== name) field.value = name;
    }
    if (again && !root.contains(document.activeElement)) root.querySelector(again)?.focus();
  };
  return { root, show };
}
