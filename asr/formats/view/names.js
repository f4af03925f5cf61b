// What the people in a recording are called: letters by order of appearance, names by whoever listens.
// Names stay in this browser, under the recording's own key.

const SHELF = "forescribe.names.";

export class Names {
  constructor(labels, key) {
    this.labels = labels;
    this.key = key ? SHELF + key : null;
    this.given = {};
    try {
      this.given = (this.key && JSON.parse(localStorage.getItem(this.key))) || {};
    } catch {
      this.given = {}; // no storage here, or not ours: names last as long as the page
    }
    this.listeners = [];
  }

  letter(label) {
    const n = this.labels.indexOf(label);
    return n < 0 ? "?" : n < 26 ? String.fromCharCode(65 + n) : String(n + 1);
  }

  // One of eight colours; the letter tells apart what shares one.
  colour(label) {
    return this.labels.indexOf(label) % 8;
  }

  shown(label) {
    if (!label || label === "unknown") return "Unknown speaker";
    if (this.given[label]) return this.given[label];
    return /^(speaker[_ ]?)?(\d+|[A-Z])$/i.test(label) ? `Speaker ${this.letter(label)}` : label;
  }

  // In files the server's own label stays where nobody has given a name.
  filed(label) {
    return this.given[label] || label;
  }

  give(label, name) {
    if (name.trim()) this.given[label] = name.trim();
    else delete this.given[label];
    try {
      if (this.key) localStorage.setItem(this.key, JSON.stringify(this.given));
    } catch {
      // full or forbidden: the name holds for this page
    }
    for (const listener of this.listeners) listener(label);
  }
}

export function forgetNames(key) {
  try {
    localStorage.removeItem(SHELF + key);
  } catch {
    // nothing was kept
  }
}
