// Saves corrections a moment after each change, and says how far it has come.
import { h } from "./dom.js";

const WAIT_MS = 700;
const SHELF = "forescribe.corrections.";

// A keeper has `load()`, which gives what was packed or null, and `save(packed)`, which throws an error with
// status 412 if somebody else has saved meanwhile; `load` then gives theirs, and the next `save` replaces it. This
// one is for pages without a server.
export class LocalKeeper {
  constructor(key) {
    this.key = SHELF + key;
  }

  async load() {
    try {
      return JSON.parse(localStorage.getItem(this.key));
    } catch {
      return null; // no storage, or foreign data
    }
  }

  async save(packed) {
    try {
      localStorage.setItem(this.key, JSON.stringify(packed));
    } catch {
      throw new Error("this browser does not keep them: download the files before you leave");
    }
  }
}

export class Saving {
  constructor(edits, keeper) {
    Object.assign(this, { edits, keeper, saved: edits.state, notes: [], timer: null, stuck: false });
    this.told = h("span", {});
    this.choices = h("span", { class: "choices" });
    this.root = h("p", { class: "saving", role: "status" }, this.told, this.choices);
    edits.listeners.push((note) => this.#later(note));
    const leave = (event) => {
      if (!this.root.isConnected) return removeEventListener("beforeunload", leave);
      if (!this.dirty) return;
      this.flush();
      event.preventDefault();
    };
    addEventListener("beforeunload", leave);
  }

  get dirty() {
    return this.edits.state !== this.saved;
  }

  // Saves now. Resolves when nothing is left to save or it has failed.
  flush() {
    clearTimeout(this.timer);
    this.running = (this.running || Promise.resolve()).then(() => this.#save());
    return this.running;
  }

  #later(note) {
    if (!this.notes.includes(note)) this.notes.push(note);
    this.#say("Not saved yet");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.flush(), WAIT_MS);
  }

  async #save() {
    if (!this.dirty) return this.#say(this.notes.length ? "Saved" : "");
    const { state } = this.edits;
    const notes = this.notes.splice(0);
    this.#say("Saving");
    try {
      await this.keeper.save(this.edits.packed(notes.join("; ")));
      this.saved = state;
      if (this.dirty) return await this.#save();
      this.#say("Saved");
    } catch (error) {
      this.notes.unshift(...notes);
      if (error.name === "AbortError") return;
      const conflict = error.status === 412;
      this.#say(conflict ? "Somebody else has saved another version meanwhile." : `Not saved: ${error.message}`, [
        ...(conflict ? [["Show theirs", () => this.#take()]] : []),
        [conflict ? "Keep mine" : "Try again", () => this.flush()],
      ]);
    }
  }

  // Theirs, which `keeper.load` has read since: mine are a step back.
  async #take() {
    const theirs = await this.keeper.load();
    this.edits.do(theirs ? this.edits.unpacked(theirs) : this.edits.original, "Took the other version");
  }

  // `choices` are what the user can do about corrections that are not saved.
  #say(text, choices = []) {
    this.stuck = choices.length > 0;
    this.told.textContent = text;
    this.root.classList.toggle("bad", choices.length > 0);
    this.choices.replaceChildren(...choices.map(([name, run]) => h("button", { type: "button", onclick: run }, name)));
  }
}
