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

  // The last of "Speaker B", or the first of a name.
  letter(label) {
    return label ? label.match(/^Speaker (\w{1,3})$/)?.[1] || [...label][0].toUpperCase() : "?";
  }

  // One of eight colours; the letter distinguishes speakers of one colour.
  colour(label) {
    return this.labels.indexOf(label) % 8;
  }

  shown(label) {
    return label ? this.edits.state.names[label] || label : "Unknown speaker";
  }
}
