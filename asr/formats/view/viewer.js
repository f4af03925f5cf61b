// The view of one recording: text, speakers, token sources, search, player. Page and report share it.
import { coverage } from "./coverage.js";
import { h } from "./dom.js";
import { facts, figures, known } from "./figures.js";
import { files } from "./formats.js";
import { menu } from "./menu.js";
import { Names } from "./names.js";
import { Player } from "./player.js";
import { shortcuts } from "./shortcuts.js";
import { Transcript } from "./transcript.js";
import { warnings } from "./warnings.js";

const KINDS = {
  txt: "Text (.txt)",
  srt: "Subtitles (.srt)",
  vtt: "Subtitles (.vtt)",
  tsv: "Table (.tsv)",
  json: "Everything (.json)",
  verbose_json: "As OpenAI's verbose_json",
  diarized_json: "As OpenAI's diarized_json",
  rttm: "Turns of speakers (.rttm)",
  recording: "The recording",
};

// `downloads` are additional [name, make]; `make` returns a Blob, a URL, or a promise of either.
export function viewer(model, { title, key, src = null, note = "", downloads = [] }) {
  const names = new Names(model.speakers, key);
  const player = new Player(model.duration, { src, note });
  const text = new Transcript(model, names, {
    seek: (seconds) => player.seek(seconds),
    toggle: () => player.toggle(),
  });
  player.ontime = (at, playing) => text.at(at, playing);
  const made = files(model, names);
  const own = Object.entries(made).map(([name, make]) => [name, () => new Blob([make()], { type: "text/plain" })]);
  const figured = known(model) ? figures(model) : null;
  const said = h("p", { class: "said", role: "status" });
  const told = (work) => async () => {
    said.textContent = "";
    try {
      said.textContent = (await work()) || "";
      said.classList.remove("bad");
    } catch (error) {
      said.textContent = error.message;
      said.classList.add("bad");
    }
  };
  const copied = told(() => copy(made.txt()));
  const saved = ([name, make]) => [KINDS[name] || name, told(async () => save(await make(), filename(title, name)))];
  const seeking = search(text);
  const help = shortcuts([
    ["/", "search", () => seeking.field.focus()],
    ["k", "play or pause", () => player.toggle()],
    ["j", "5 seconds back", () => player.step(-1)],
    ["l", "5 seconds on", () => player.step(1)],
    ["c", "copy the text", copied],
  ]);
  player.controls.append(help.button);
  const root = h(
    "div",
    { class: "viewer", "data-view": "speakers" },
    h("dl", { class: "facts" }, facts(model).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    warnings(model.warnings),
    coverage(model, names),
    h(
      "div",
      { class: "toolbar" },
      figured ? views((view) => (root.dataset.view = view)) : null,
      seeking.root,
      h("button", { type: "button", class: "copy", disabled: !model.words.length, onclick: copied }, "Copy"),
      menu("Download", [...own, ...downloads].map(saved)),
      said,
    ),
    model.speakers.length ? people(names, model.suggestions) : null,
    figured,
    text.root,
    player.root,
    help.root,
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
  return { root: h("div", { class: "search", role: "search" }, field, said, steps), field };
}

// Removes characters that file systems do not allow; letters of all scripts stay.
function filename(title, name) {
  const [, stem, ending] = title.match(/^(.*?)(\.[a-z0-9]{1,5})?$/is);
  const clean = [...stem.replace(/[<>:"/\\|?*\p{Cc}\p{Cs}\u202a-\u202e\u2066-\u2069]+/gu, "_")].slice(0, 120).join("").replace(/^[ .]+|[ .]+$/g, "") || "transcript";
  if (name === "recording") return clean + (ending || "");
  return name.includes("_") ? `${clean}.${name.split("_")[0]}.json` : `${clean}.${name}`;
}

function save(made, name) {
  const url = made instanceof Blob ? URL.createObjectURL(made) : made;
  const link = h("a", { href: url, download: name });
  link.click();
  if (url !== made) setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// Browsers provide a clipboard in secure contexts only; elsewhere the selection can be copied.
async function copy(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else {
    const [field, before] = [h("textarea", { class: "unseen", readonly: true }), document.activeElement];
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    before?.focus({ preventScroll: true });
    if (!done) throw new Error("The browser does not let this page copy: select the text instead.");
  }
  return "Copied.";
}

// A suggested name is accepted with a button. Names are this browser's: the transcript stays as it is.
function people(names, suggestions) {
  const accept = ({ speaker, name, score }) =>
    h(
      "button",
      {
        type: "button",
        class: "small",
        onclick: ({ target }) => {
          names.give(speaker, name);
          const field = target.previousElementSibling.querySelector("input");
          [field.value, target.hidden] = [name, true];
          field.focus();
        },
      },
      `${name}? (${score.toFixed(2)})`,
    );
  const offered = (label) =>
    suggestions.filter(({ speaker, name }) => speaker === label && names.given[label] !== name).slice(0, 1).map(accept);
  return h(
    "section",
    { class: "people", "aria-label": "Speakers" },
    names.labels.map((label) => [
      h(
        "label",
        { class: `person speaker-${names.colour(label)}` },
        h("span", { class: "letter", "aria-hidden": "true" }, names.letter(label)),
        h("span", { class: "unseen" }, `Name of speaker ${names.letter(label)}`),
        h("input", {
          type: "text",
          dir: "auto",
          value: names.given[label] || "",
          placeholder: names.shown(label),
          autocomplete: "off",
          spellcheck: "false",
          oninput: (event) => names.give(label, event.target.value),
        }),
      ),
      ...offered(label),
    ]),
  );
}
