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
    this.chosen = new Set(this.#restore()); // what the user has set; the rest are the server's defaults
    element("settings").addEventListener("input", (event) => this.#set(event.target.id));
    this.#tell();
  }

  // Whether the server can find `speakers`, which it then does unless the user has switched it off.
  limit(speakers) {
    const diarize = element("diarize");
    diarize.disabled = !speakers;
    if (!speakers || !this.chosen.has("diarize")) diarize.checked = speakers;
    diarize.closest("label").title = speakers ? "" : "This server does not identify speakers.";
    this.#tell();
  }

  get() {
    return {
      language: element("language").value,
      task: element("task").value,
      diarize: element("diarize").checked,
      speakers: element("speakers").value,
    };
  }

  // Returns the names of what was kept.
  #restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(SHELF)) || {};
      for (const name of ["language", "task", "speakers"]) if (name in kept) element(name).value = kept[name];
      if ("diarize" in kept) element("diarize").checked = kept.diarize;
      return Object.keys(kept);
    } catch {
      return []; // nothing kept, or nothing that we wrote
    }
  }

  #set(name) {
    this.chosen.add(name);
    const kept = Object.entries(this.get()).filter(([one]) => this.chosen.has(one));
    try {
      localStorage.setItem(SHELF, JSON.stringify(Object.fromEntries(kept)));
    } catch {
      // it holds for this page
    }
    this.#tell();
  }

  #tell() {
    const now = this.get();
    element("speakers").disabled = !now.diarize;
    const language = element("language").selectedOptions[0];
    const told = [language.value ? language.text : "any language"];
    if (now.task === "translate") told.push("into English");
    if (now.diarize) told.push("speakers");
    element("chosen").textContent = told.join(", ");
  }
}
