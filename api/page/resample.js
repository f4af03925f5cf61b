// From the microphone's rate to another one, piece by piece: a windowed sinc for each phase of the two rates.

const CROSSINGS = 24; // of zero, on each side
const PASSED = 0.94; // of the lower rate's band; the rest is for the filter's slope
const LONGEST = 4096; // samples at once

export class Resampler {
  constructor(from, to) {
    const common = divisor(from, to);
    [this.up, this.down] = [to / common, from / common];
    const cutoff = PASSED * Math.min(1, to / from);
    this.half = Math.ceil(CROSSINGS / cutoff);
    this.filters = Array.from({ length: this.up }, (_, phase) => filter(phase / this.up, this.half, cutoff));
    this.held = new Float32Array(2 * this.half + Math.ceil(from / to) + LONGEST);
    this.length = this.half - 1; // silence before the first sample
    this.at = this.length * this.up; // of the next output, in parts of an input sample
  }

  // Calls `put(value)` for each sample that is ready.
  push(samples, put) {
    const { up, half, held } = this;
    held.set(samples, this.length);
    this.length += samples.length;
    for (; Math.floor(this.at / up) + half < this.length; this.at += this.down) {
      const first = Math.floor(this.at / up) - half + 1;
      const taps = this.filters[this.at % up];
      let sum = 0;
      for (let n = 0; n < taps.length; n++) sum += taps[n] * held[first + n];
      put(sum);
    }
    const passed = Math.min(Math.floor(this.at / up) - half + 1, this.length);
    held.copyWithin(0, passed, this.length);
    this.length -= passed;
    this.at -= passed * up;
  }

  // The last samples.
  finish(put) {
    this.push(new Float32Array(this.half), put);
  }
}

function filter(fraction, half, cutoff) {
  const taps = Float32Array.from({ length: 2 * half }, (_, n) => {
    const x = n - half + 1 - fraction;
    const turn = (Math.PI * x) / half;
    const blackman = 0.42 + 0.5 * Math.cos(turn) + 0.08 * Math.cos(2 * turn);
    return blackman * (x ? Math.sin(Math.PI * cutoff * x) / (Math.PI * x) : cutoff);
  });
  const sum = taps.reduce((total, tap) => total + tap, 0);
  return taps.map((tap) => tap / sum);
}

function divisor(a, b) {
  return b ? divisor(b, a % b) : a;
}
