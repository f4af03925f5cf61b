// The settings for new recordings, stored in this browser.

const SHELF = "forescribe.settings";
const CODES =
  "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it ja " +
  "jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr " +
  "su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue zh";

const FIELDS = ["language", "task", "speakers", "redact", "terms", "replacements"];
const LISTS = ["terms", "replacements"]; // one in each line
const MOST_SPEAKERS = 12;
const NOBODY = "0"; // speakers are not told apart

const element = (id) => document.getElementById(id);

export class Settings {
  constructor() {
    const names = new Intl.DisplayNames(["en"], { type: "language" });
    // Whisper's code for Javanese is an old one.
    const languages = CODES.split(" ").map((code) => [code, names.of(code === "jw" ? "jv" : code)]);
    languages.sort(([, a], [, b]) => a.localeCompare(b));
    element("language").append(new Option("detect", ""), ...languages.map(([code, name]) => new Option(name, code)));
    const numbers = Array.from({ length: MOST_SPEAKERS }, (_, n) => new Option(n ? `${n + 1} people` : "1 person", n + 1));
    element("speakers").append(new Option("told apart", ""), ...numbers, new Option("not told apart", NOBODY));
    this.#restore();
    element("settings").addEventListener("input", () => this.#keep());
  }

  // What the server has: its model, and whether that tells speakers apart.
  limit({ id, speakers }) {
    element("model").textContent = id;
    element("speakers").closest("label").hidden = !speakers;
  }

  // `speakers` is their number, or "".
  get() {
    const { language, task, speakers, redact, ...lists } = this.#values();
    const diarize = !element("speakers").closest("label").hidden && speakers !== NOBODY;
    for (const name of LISTS) lists[name] = lines(lists[name]);
    return { language, task, diarize, speakers: diarize ? speakers : "", redact, ...lists };
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
      kept.terms ??= (kept.names || "").split(/\s*,\s*/).join("\n"); // of an earlier version
      for (const name of FIELDS) element(name).value = kept[name] ?? "";
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
