// Saves corrections a moment after each change, and says how far it has come.
import { h } from "./dom.js";

const WAIT_MS = 700;
const TYPED_MS = 3000; // while a name is typed
const SETTLE_MS = 4000;
const SHELF = "forescribe.corrections.";

// A keeper has `load()`, which gives what was packed or null, and `save(packed)`, which throws an error with
// status 412 if somebody else has saved meanwhile; `load` then gives theirs, and the next `save` replaces it.
// `version(number)` gives what was packed once; the latest, without a number, has the `history`. This one is for pages
// without a server.
export class LocalKeeper {
  constructor(key) {
    this.key = SHELF + key;
  }

  async load() {
    try {
      return JSON.parse((this.seen = localStorage.getItem(this.key)));
    } catch {
      return null; // no storage, or foreign data
    }
  }

  async version() {
    return { history: [] };
  }

  async save(packed) {
    try {
      const { seen } = this;
      await this.load();
      if (this.seen !== (seen ?? null)) throw Object.assign(new Error(), { status: 412 }); // by another window
      localStorage.setItem(this.key, JSON.stringify(packed));
      this.seen = localStorage.getItem(this.key);
    } catch (error) {
      if (error.status) throw error;
      throw new Error("this browser does not keep them: download the files before you leave");
    }
  }
}

// `settle()` makes a correction of what is being typed; `signal` ends it.
export class Saving {
  constructor(edits, keeper, settle, signal) {
    Object.assign(this, { edits, keeper, settle, saved: edits.state, steps: [], timer: null, conflict: false });
    this.told = h("span", {});
    this.choices = h("span", { class: "choices" });
    this.root = h("p", { class: "saving", role: "status" }, this.told, this.choices);
    edits.listeners.push(() => {
      if (!this.conflict) this.#say("Not saved yet");
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.flush(), edits.past.at(-1)?.kind ? TYPED_MS : WAIT_MS);
    });
    const leave = (event) => {
      settle();
      if (this.dirty) this.flush(), event.preventDefault();
    };
    addEventListener("beforeunload", leave, { signal });
    // A telephone ends a page that nobody sees without a question.
    document.addEventListener("visibilitychange", () => document.hidden && (settle(), this.flush()), { signal });
  }

  get dirty() {
    return this.edits.state !== this.saved;
  }

  // Saves what is being typed too, for at most `SETTLE_MS`. Throws if that is not done by then.
  async settled() {
    this.settle();
    await Promise.race([this.flush(), new Promise((resolve) => setTimeout(resolve, SETTLE_MS))]);
    if (this.conflict) throw new Error("Choose first which version is to be kept.");
    if (this.dirty) throw new Error("The corrections are not saved yet: try again once they are.");
  }

  // Saves now. Resolves when nothing is left to save, it has failed, or which version is to be kept is not decided.
  flush() {
    clearTimeout(this.timer);
    return (this.running = (this.running || Promise.resolve()).then(() => this.#save()));
  }

  // What was done since the last version.
  get #note() {
    const { past } = this.edits;
    const undone = this.steps.filter((step) => step.undone).map(({ note }) => `Undone: ${note}`);
    const told = [...undone, ...past.filter((step) => !this.steps.includes(step)).map(({ note }) => note)];
    return told.join("; ") || past.at(-1)?.note;
  }

  async #save() {
    if (this.conflict) return;
    if (!this.dirty) return this.#say(this.edits.past.length + this.edits.future.length ? "Saved" : "");
    const saved = { saved: this.edits.state, steps: [...this.edits.past] };
    this.#say("Saving");
    try {
      await this.keeper.save(this.edits.packed(this.#note));
      Object.assign(this, saved);
      if (this.dirty) return await this.#save();
      this.#say("Saved");
    } catch (error) {
      if (error.name === "AbortError") return;
      const conflict = (this.conflict = error.status === 412);
      this.#say(conflict ? "Somebody else has saved another version meanwhile." : `Not saved: ${error.message}`, [
        ...(conflict ? [["Show theirs", () => this.#take()]] : []),
        [conflict ? "Keep mine" : "Try again", () => ((this.conflict = false), this.flush())],
      ]);
    }
  }

  // Theirs, which `keeper.load` has read since: mine are a step back.
  async #take() {
    const theirs = await this.keeper.load();
    this.conflict = false;
    this.edits.do(theirs ? this.edits.unpacked(theirs) : this.edits.original, "Took the other version");
  }

  // `choices` are what the user can do about corrections that are not saved.
  #say(text, choices = []) {
    this.told.textContent = text;
    this.root.classList.toggle("bad", choices.length > 0);
    this.choices.replaceChildren(...choices.map(([name, run]) => h("button", { type: "button", onclick: run }, name)));
  }
}
