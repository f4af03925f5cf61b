// The speakers: their names, and which of them are one person.
import { h } from "./dom.js";
import { popup } from "./menu.js";

// Returns {root, show(labels)}. `act` has `name(label, name)`, `merge(from, into)`. `suggestions` as in model.js.
export function people(names, suggestions, act) {
  const root = h("section", { class: "people", "aria-label": "Speakers" });
  let drawn = "";
  const offered = (label, field) =>
    suggestions
      .filter(({ speaker, name }) => speaker === label && names.given[label] !== name)
      .slice(0, 1)
      .map(({ name, score }) =>
        h(
          "button",
          {
            type: "button",
            class: "small offer",
            onclick: ({ target }) => {
              target.hidden = true;
              act.name(label, name);
              field.focus();
            },
          },
          `${name}? (${score.toFixed(2)})`,
        ),
      );
  const merging = (label, labels) =>
    h(
      "button",
      {
        type: "button",
        class: "merges",
        "data-label": label,
        title: "Merge with another speaker",
        "aria-haspopup": "menu",
        onclick: ({ currentTarget }) =>
          popup(
            currentTarget,
            "Merge",
            labels.filter((other) => other !== label).map((other) => [`The same person as ${names.shown(other)}`, () => act.merge(label, other)]),
          ),
      },
      "⋯",
    );
  const person = (label, n, labels) => {
    const field = h("input", {
      type: "text",
      dir: "auto",
      placeholder: names.shown(label),
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 200,
      "data-label": label,
      oninput: (event) => act.name(label, event.target.value),
    });
    return h(
      "span",
      { class: `person speaker-${names.colour(label)}`, title: n < 9 ? `Key ${n + 1}` : null },
      h(
        "label",
        {},
        h("span", { class: "letter", "aria-hidden": "true" }, names.letter(label)),
        h("span", { class: "unseen" }, `Name of speaker ${names.letter(label)}`),
        field,
      ),
      labels.length > 1 ? merging(label, labels) : null,
      offered(label, field),
    );
  };
  const show = (labels) => {
    if (labels.join("\n") !== drawn) {
      drawn = labels.join("\n");
      root.replaceChildren(...labels.map(person));
    }
    root.hidden = !labels.length;
    for (const button of root.querySelectorAll(".merges")) {
      button.setAttribute("aria-label", `Merge ${names.shown(button.dataset.label)} with another speaker`);
    }
    for (const field of root.querySelectorAll("input")) {
      const name = names.given[field.dataset.label] || "";
      if (field !== document.activeElement && field.value !== name) field.value = name;
    }
  };
  return { root, show };
}
