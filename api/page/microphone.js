// The microphone: pieces of 16-bit samples while somebody speaks, and all of them as a WAV file.

export const RATE = 16000; // Hz, what the models hear
const PIECE = 1280; // samples: 80 ms

// Why this page cannot record, or "".
export function prevented() {
  if (!window.isSecureContext) return "Browsers allow recording only on https:// and localhost.";
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) return "This browser cannot record.";
  return "";
}

// Browsers' filters are made for calls: they clip the first words and change voices.
const AS_HEARD = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };

const REASONS = {
  NotAllowedError: "The browser does not allow this page to use the microphone: allow it beside the address, then record again.",
  NotFoundError: "No microphone was found.",
  NotReadableError: "The microphone cannot be used: another program may be using it.",
};

export class Microphone {
  // `onpiece(samples)`; `onend()` when the microphone is gone. Throws an Error for users.
  static async open(told) {
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: AS_HEARD });
      const one = new Microphone(stream, told);
      await one.#begin();
      return one;
    } catch (error) {
      throw new Error(REASONS[error.name] || `The microphone cannot be used: ${error.message}`, { cause: error });
    }
  }

  constructor(stream, told) {
    Object.assign(this, { stream, told, pieces: [], length: 0, began: new Date() });
    this.context = new AudioContext();
    this.ended = new Promise((resolve) => (this.end = resolve));
  }

  get seconds() {
    return this.length / RATE;
  }

  async #begin() {
    const { context, stream, told } = this;
    try {
      await context.audioWorklet.addModule("page/worklet.js");
      const given = { channelCount: 1, channelCountMode: "explicit", processorOptions: { rate: RATE, length: PIECE } };
      this.node = new AudioWorkletNode(context, "capture", given);
      this.node.port.onmessage = ({ data }) => (data ? this.#take(data) : this.end());
      const [track] = stream.getAudioTracks();
      track.onended = () => told.onend();
      await context.resume();
      // Its output is silence; some browsers run only what leads to an output.
      context.createMediaStreamSource(stream).connect(this.node).connect(context.destination);
      this.began = new Date();
    } catch (error) {
      this.#leave();
      throw error;
    }
  }

  #take(samples) {
    this.length += samples.length;
    this.pieces.push(samples);
    this.told.onpiece(samples);
  }

  // The recording as a file, or null if there is nothing of it.
  async stop() {
    this.node.port.postMessage("end");
    await Promise.race([this.ended, new Promise((resolve) => setTimeout(resolve, 1000))]); // a suspended one does not answer
    this.#leave();
    const type = "audio/wav";
    return this.length ? new File([...header(2 * this.length), ...this.pieces], nameOf(this.began), { type }) : null;
  }

  #leave() {
    for (const track of this.stream.getTracks()) track.stop();
    if (this.node) this.node.port.onmessage = null;
    this.context.close();
  }
}

// Of a WAV file of one channel, in parts. Numbers are those of this machine, as the samples are: little-endian.
function header(bytes) {
  const [two, four] = [Uint16Array, Uint32Array].map((kind) => (...numbers) => new kind(numbers));
  return ["RIFF", four(36 + bytes), "WAVEfmt ", four(16), two(1, 1), four(RATE, 2 * RATE), two(2, 16), "data", four(bytes)];
}

function nameOf(when) {
  const two = (n) => String(n).padStart(2, "0");
  const day = `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  return `Recording ${day} ${two(when.getHours())}.${two(when.getMinutes())}.wav`;
}
