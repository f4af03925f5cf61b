// One recording on the screen: text, speakers, writers, search, player. The page and the report share it.
import { coverage } from "./coverage.js";
import { h } from "./dom.js";
import { facts, figures, known } from "./figures.js";
import { files } from "./formats.js";
import { Names } from "./names.js";
import { Player } from "./player.js";
import { Transcript } from "./transcript.js";

// `downloads` are [name, () => Blob or a promise of one] beside those that are made here.
export function viewer(model, { title, key, src = null, note = "", downloads = [] }) {
  const names = new Names(model.speakers, key);
  const player = new Player(model.duration, { src, note });
  const text = new Transcript(model, names, {
    seek: (seconds) => player.seek(seconds),
    toggle: () => player.toggle(),
  });
  player.ontime = (at, playing) => text.at(at, playing);
  const own = Object.entries(files(model, names)).map(([name, make]) => [
    name,
    () => new Blob([make()], { type: "text/plain" }),
  ]);
  const figured = known(model) ? figures(model) : null;
  const root = h(
    "div",
    { class: "viewer", "data-view": "speakers" },
    h("dl", { class: "facts" }, facts(model).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    model.warnings.length
      ? h("ul", { class: "warnings", "aria-label": "Warnings" }, model.warnings.map(({ message }) => h("li", {}, message)))
      : null,
    coverage(model, names),
    h(
      "div",
      { class: "toolbar" },
      figured ? views((view) => (root.dataset.view = view)) : null,
      search(text),
      menu(title, [...own, ...downloads]),
    ),
    model.speakers.length ? people(names) : null,
    figured,
    text.root,
    player.root,
  );
  return { root, player, text, names };
}

function views(choose) {
  const one = (value, label, checked) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name: "view", value, checked, onchange: () => choose(value) }),
      h("span", {}, label),
    );
  return h(
    "fieldset",
    { class: "views" },
    h("legend", { class: "unseen" }, "What colours mean"),
    one("speakers", "Transcript", true),
    one("writers", "Who wrote it", false),
  );
}

function search(text) {
  let [count, at] = [0, -1];
  const said = h("span", { class: "count", role: "status" });
  const go = (step) => {
    if (!count) return;
    at = (at + step + count) % count;
    text.goTo(at);
    said.textContent = `${at + 1} of ${count}`;
  };
  const field = h("input", {
    type: "search",
    placeholder: "Search",
    "aria-label": "Search in the transcript",
    oninput: () => {
      [count, at] = [text.find(field.value), -1];
      said.textContent = field.value.trim() ? (count ? `${count} found` : "not found") : "";
      for (const step of steps) step.disabled = !count;
    },
    onkeydown: (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      go(event.shiftKey ? -1 : 1);
    },
  });
  const steps = [
    h("button", { type: "button", class: "small", disabled: true, "aria-label": "Previous place", onclick: () => go(-1) }, "↑"),
    h("button", { type: "button", class: "small", disabled: true, "aria-label": "Next place", onclick: () => go(1) }, "↓"),
  ];
  return h("div", { class: "search", role: "search" }, field, said, steps);
}

function menu(title, downloads) {
  const said = h("p", { class: "note", role: "status" });
  const list = downloads.map(([name, make]) =>
    h(
      "li",
      {},
      h(
        "button",
        {
          type: "button",
          onclick: async () => {
            try {
              said.textContent = "";
              save(await make(), filename(title, name));
            } catch (error) {
              said.textContent = error.message;
            }
          },
        },
        name.replaceAll("_", " "),
      ),
    ),
  );
  const root = h("details", { class: "menu" }, h("summary", {}, "Download"), h("div", {}, h("ul", {}, list), said));
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !root.open) return;
    root.open = false;
    root.firstChild.focus();
  });
  return root;
}

function filename(title, name) {
  const stem = title.replace(/\.[a-z0-9]{1,5}$/i, "").replace(/[^\p{L}\p{N} ._-]+/gu, "_").slice(0, 80) || "transcript";
  return name.includes("_") ? `${stem}.${name.split("_")[0]}.json` : `${stem}.${name}`;
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function people(names) {
  return h(
    "section",
    { class: "people", "aria-label": "Speakers" },
    names.labels.map((label) =>
      h(
        "label",
        { class: `person speaker-${names.colour(label)}` },
        h("span", { class: "letter", "aria-hidden": "true" }, names.letter(label)),
        h("span", { class: "unseen" }, `Name of speaker ${names.letter(label)}`),
        h("input", {
          type: "text",
          value: names.given[label] || "",
          placeholder: names.shown(label),
          autocomplete: "off",
          spellcheck: "false",
          oninput: (event) => names.give(label, event.target.value),
        }),
      ),
    ),
  );
}
