// The settings for new recordings, stored in this browser.

const SHELF = "forescribe.settings";
const FIELDS = ["language", "task", "speakers", "redact", "terms", "replacements"];
const LISTS = ["terms", "replacements"]; // one in each line
const MOST_SPEAKERS = 12;
const NOBODY = "0"; // speakers are not told apart

const element = (id) => document.getElementById(id);
const there = (id) => !element(id).closest("label").hidden;

export class Settings {
  constructor() {
    const numbers = Array.from({ length: MOST_SPEAKERS }, (_, n) => new Option(n ? `${n + 1} people` : "1 person", n + 1));
    element("speakers").append(new Option("told apart", ""), ...numbers, new Option("not told apart", NOBODY));
    this.#restore();
    element("settings").addEventListener("input", () => this.#keep());
  }

  // What the server has: its model, whether that tells speakers apart and translates, and the English names of its
  // languages by code, for those that the browser cannot name in the user's language.
  limit({ id, speakers, translates, languages }) {
    this.languages = languages;
    element("model").textContent = id;
    const names = new Intl.DisplayNames(navigator.languages, { type: "language", fallback: "none" });
    // Whisper's code for Javanese is an old one.
    const named = Object.entries(languages).map(([code, name]) => [names.of(code === "jw" ? "jv" : code) || name, code]);
    named.sort(([one], [other]) => one.localeCompare(other));
    element("language").replaceChildren(new Option("detect", ""), ...named.map(([name, code]) => new Option(name, code)));
    this.#restore();
    const shown = { speakers, task: translates, language: named.length > 1 };
    for (const [name, on] of Object.entries(shown)) element(name).closest("label").hidden = !on;
  }

  // `speakers` is their number, or "".
  get() {
    const { language, task, speakers, redact, ...lists } = this.#values();
    const [diarize, translate] = [there("speakers") && speakers !== NOBODY, there("task") && task === "translate"];
    for (const name of LISTS) lists[name] = lines(lists[name]);
    return { language, task: translate ? "translate" : "transcribe", diarize, speakers: diarize ? speakers : "", redact, ...lists };
  }

  // Adds corrections [heard, meant], in place of others of the same words.
  remember(pairs) {
    this.#restore(); // another tab may have added some
    const known = new Set(pairs.map(([heard]) => folded(heard)));
    const kept = lines(element("replacements").value).filter((line) => !known.has(folded(line.split("=>")[0])));
    element("replacements").value = [...kept, ...pairs.map(([heard, meant]) => `${heard} => ${meant}`.trim())].join("\n");
    this.#keep();
  }

  #values() {
    return Object.fromEntries(FIELDS.map((name) => [name, element(name).value]));
  }

  #restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(SHELF));
      for (const name of FIELDS) {
        element(name).value = kept[name] ?? "";
        if (element(name).selectedIndex < 0) element(name).selectedIndex = 0; // not offered here
      }
    } catch {
      // nothing kept, or nothing that we wrote
    }
  }

  #keep() {
    try {
      localStorage.setItem(SHELF, JSON.stringify(this.#values()));
    } catch {
      // it holds for this page
    }
  }
}

function lines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

function folded(words) {
  return words.normalize("NFC").toLowerCase().trim().replace(/\s+/g, " ");
}
