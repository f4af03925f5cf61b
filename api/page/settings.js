// The settings for new recordings, stored in this browser.

const SHELF = "forescribe.settings";
const CODES =
  "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it ja " +
  "jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr " +
  "su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue zh";

const FIELDS = ["language", "task", "speakers", "names"];
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
    const { language, task, speakers, names } = this.#values();
    const diarize = !element("speakers").closest("label").hidden && speakers !== NOBODY;
    return { language, task, diarize, speakers: diarize ? speakers : "", names: names.trim() };
  }

  #values() {
    return Object.fromEntries(FIELDS.map((name) => [name, element(name).value]));
  }

  #restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(SHELF));
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
