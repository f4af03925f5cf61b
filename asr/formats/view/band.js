// Who speaks when, in the speakers' colours, above the player: with the waveform where it is known. A click goes
// there; for keyboards there is the player's slider.
import { marks } from "./coverage.js";
import { h } from "./dom.js";

export const MOST_S = 20 * 60; // a browser decodes the whole recording, at 48 kHz, to draw it
const DRAWN_RATE = 8000;
const [BAR, GAP] = [2, 1]; // pixels

// `seek(seconds)`. Returns {root, show(model), at(seconds), hear(bytes), wave(peaks)}.
export function band(names, seek) {
  const turns = h("div", { class: "turns" });
  const canvas = h("canvas", { hidden: true });
  const place = h("div", { class: "place-mark" });
  const root = h(
    "div",
    {
      class: "band",
      "aria-hidden": "true",
      onclick: (event) => {
        const { left, width } = root.getBoundingClientRect();
        seek((model.duration * (event.clientX - left)) / width);
      },
    },
    turns,
    canvas,
    place,
  );
  let [model, peaks] = [null, null];
  const draw = () => {
    if (!peaks || !model) return;
    const { width, height } = root.getBoundingClientRect();
    const scale = devicePixelRatio || 1;
    Object.assign(canvas, { width: width * scale, height: height * scale });
    const [pen, count] = [canvas.getContext("2d"), Math.floor(width / (BAR + GAP))];
    const style = getComputedStyle(root);
    const plain = style.getPropertyValue("--quiet");
    const tones = new Map(names.labels.map((label) => [label, style.getPropertyValue(`--s${names.colour(label)}`)]));
    const loudest = Math.max(0.01, ...peaks);
    pen.scale(scale, scale);
    let next = 0;
    for (let n = 0; n < count; n++) {
      const [from, to] = [(peaks.length * n) / count, (peaks.length * (n + 1)) / count];
      const at = (model.duration * (n + 0.5)) / count;
      while (model.segments[next + 1]?.start <= at) next++;
      const segment = model.segments[next];
      const speaks = segment && segment.start <= at && at <= segment.end;
      pen.fillStyle = (speaks && tones.get(segment.speaker)) || plain;
      pen.globalAlpha = speaks ? 1 : 0.45;
      const peak = Math.max(...peaks.slice(Math.floor(from), Math.max(Math.ceil(to), Math.floor(from) + 1))) / loudest;
      const tall = Math.max(1.5, peak * (height - 2));
      pen.fillRect(n * (BAR + GAP), (height - tall) / 2, BAR, tall);
    }
  };
  const wave = (found) => {
    if (!found.length) return;
    peaks = found;
    root.hidden = canvas.hidden = false;
    root.classList.add("heard");
    draw();
  };
  new ResizeObserver(draw).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return {
    root,
    at(seconds) {
      place.style.left = `${(100 * seconds) / model.duration}%`;
    },
    show(now) {
      model = now;
      root.hidden = !now.speakers.length && !peaks;
      const spoken = now.segments.filter(({ speaker }) => speaker);
      turns.replaceChildren(
        ...marks(spoken.map(({ start, end, speaker }) => [start, end, `speaker-${names.colour(speaker)}`, names.shown(speaker)]), now.duration),
      );
      draw();
    },
    // Draws the waveform of a recording; one that the browser cannot decode has none.
    async hear(bytes) {
      try {
        const sound = await new OfflineAudioContext(1, 1, DRAWN_RATE).decodeAudioData(bytes);
        wave(loudness(sound.getChannelData(0)));
      } catch (error) {
        if (error.name !== "EncodingError") throw error;
      }
    },
    wave,
  };
}

// The loudest sample of each of 2000 parts.
function loudness(samples) {
  const found = new Float32Array(2000);
  const step = samples.length / found.length;
  for (let n = 0; n < found.length; n++) {
    const to = Math.min(samples.length, Math.ceil((n + 1) * step));
    for (let k = Math.floor(n * step); k < to; k++) found[n] = Math.max(found[n], Math.abs(samples[k]));
  }
  return found;
}
