// The settings for new recordings, stored in this browser.

const SHELF = "forescribe.settings";
const CODES =
  "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it ja " +
  "jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr " +
  "su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue zh";

const element = (id) => document.getElementById(id);

export class Settings {
  constructor() {
    const names = new Intl.DisplayNames(["en"], { type: "language" });
    // Whisper's code for Javanese is an old one.
    const languages = CODES.split(" ").map((code) => [code, names.of(code === "jw" ? "jv" : code)]);
    languages.sort(([, a], [, b]) => a.localeCompare(b));
    element("language").append(new Option("detect", ""), ...languages.map(([code, name]) => new Option(name, code)));
    this.kept = this.#restore();
    element("settings").addEventListener("input", () => this.#keep());
  }

  // Whether the server can find `speakers`, which it then does unless the user has switched it off.
  limit(speakers) {
    const diarize = element("diarize");
    diarize.disabled = !speakers;
    if (!speakers || !this.kept) diarize.checked = speakers;
    diarize.closest("label").title = speakers ? "" : "This server does not identify speakers.";
  }

  get() {
    return {
      language: element("language").value,
      task: element("task").value,
      diarize: element("diarize").checked,
      speakers: element("speakers").value,
    };
  }

  // Whether anything was kept.
  #restore() {
    try {
      const { diarize, ...values } = JSON.parse(localStorage.getItem(SHELF));
      for (const [name, value] of Object.entries(values)) element(name).value = value;
      element("diarize").checked = diarize;
      return true;
    } catch {
      return false; // nothing kept, or nothing that we wrote
    }
  }

  #keep() {
    this.kept = true;
    try {
      localStorage.setItem(SHELF, JSON.stringify(this.get()));
    } catch {
      // it holds for this page
    }
  }
}
