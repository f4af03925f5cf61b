// On the browser's audio thread: what the microphone hears, in pieces of 16-bit samples. A message ends it.
import { Resampler } from "./resample.js";

class Capture extends AudioWorkletProcessor {
  constructor({ processorOptions: { rate, length } }) {
    super();
    this.resampler = new Resampler(Math.round(sampleRate), rate);
    this.piece = new Int16Array(length);
    this.filled = 0;
    this.on = true;
    this.put = (value) => {
      this.piece[this.filled++] = Math.max(-32768, Math.min(32767, Math.round(32768 * value)));
      if (this.filled === this.piece.length) this.#post();
    };
    this.port.onmessage = () => {
      if (this.on) this.resampler.finish(this.put);
      this.on = false;
      this.#post();
      this.port.postMessage(null); // the end
    };
  }

  process([channels]) {
    if (this.on && channels.length) this.resampler.push(channels[0], this.put);
    return this.on;
  }

  #post() {
    const heard = this.piece.slice(0, this.filled);
    this.filled = 0;
    if (heard.length) this.port.postMessage(heard, [heard.buffer]);
  }
}

registerProcessor("capture", Capture);
