// Names of speakers: letters in order of appearance, or names given by the reader.
// Names are stored in this browser, under the recording's key.

const SHELF = "forescribe.names.";

export class Names {
  constructor(labels, key) {
    this.labels = labels;
    this.key = key ? SHELF + key : null;
    this.given = {};
    try {
      this.given = (this.key && JSON.parse(localStorage.getItem(this.key))) || {};
    } catch {
      this.given = {}; // no storage, or foreign data: names last as long as the page
    }
    this.listeners = [];
  }

  letter(label) {
    const n = this.labels.indexOf(label);
    return n < 0 ? "?" : n < 26 ? String.fromCharCode(65 + n) : String(n + 1);
  }

  // One of eight colours; the letter distinguishes speakers of one colour.
  colour(label) {
    return this.labels.indexOf(label) % 8;
  }

  shown(label) {
    if (!label || label === "unknown") return "Unknown speaker";
    if (this.given[label]) return this.given[label];
    return /^(speaker[_ ]?)?(\d+|[A-Z])$/i.test(label) ? `Speaker ${this.letter(label)}` : label;
  }

  // Files keep the server's label unless a name was given.
  filed(label) {
    return this.given[label] || label;
  }

  give(label, name) {
    if (name.trim()) this.given[label] = name.trim();
    else delete this.given[label];
    try {
      if (this.key) localStorage.setItem(this.key, JSON.stringify(this.given));
    } catch {
      // full or forbidden: the name lasts as long as the page
    }
    for (const listener of this.listeners) listener(label);
  }
}

export function forgetNames(key) {
  try {
    localStorage.removeItem(SHELF + key);
  } catch {
    // nothing is stored
  }
}
