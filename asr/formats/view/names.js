// Names of speakers: letters in order of appearance, or names given by the reader, which are corrections.

export class Names {
  constructor(edits) {
    this.edits = edits;
    this.labels = []; // in order of appearance; one whose parts went to others keeps its letter
    this.learn();
  }

  // New labels of the current segments.
  learn() {
    const { state, original } = this.edits;
    for (const { speaker } of [...original.segments, ...state.segments]) {
      if (speaker && !this.labels.includes(speaker)) this.labels.push(speaker);
    }
  }

  get given() {
    return this.edits.state.names;
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
    if (!label) return "Unknown speaker";
    return this.given[label] || (/^SPEAKER_\d+$/.test(label) ? `Speaker ${this.letter(label)}` : label);
  }

  // Files keep the server's label unless a name was given.
  filed(label) {
    return this.given[label] || label;
  }
}
