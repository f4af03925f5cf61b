// Words that are selected in the text with the mouse, and a choice beside them of who has said them.
import { h } from "./dom.js";

const STILL_MS = 200; // until the selection stays as it is

// `give(first word, last word, label or "new")`; `signal` ends it.
export function selection(text, names, give, signal) {
  let [words, held, timer] = [[], false, null];
  const given = () => {
    getSelection().removeAllRanges();
    root.hidden = true;
    give(words[0], words.at(-1), choice.value);
  };
  const choice = h("select", { "aria-label": "Speaker of the selected words", onchange: given });
  const root = h("div", { class: "selection", hidden: true }, choice);
  const show = () => {
    if (held || root.contains(document.activeElement)) return;
    const { spans, model } = text;
    const range = getSelection().rangeCount ? getSelection().getRangeAt(0) : new Range();
    words = range.collapsed ? [] : [...spans.keys()].filter((n) => !spans[n].hidden && holds(range, spans[n].firstChild));
    root.hidden = !words.length;
    if (!words.length) return;
    const told = words.length === 1 ? "Who says this word?" : `Who says these ${words.length} words?`;
    const speakers = model.speakers.map((label) => h("option", { value: label }, names.shown(label)));
    choice.replaceChildren(h("option", { value: "", hidden: true }, told), ...speakers, h("option", { value: "new" }, "A new speaker"));
    const [own, around] = [range, root.offsetParent].map((one) => one.getBoundingClientRect());
    const left = Math.max(0, Math.min(own.left - around.left, around.width - root.offsetWidth));
    Object.assign(root.style, { left: `${left}px`, top: `${own.bottom - around.top + 6}px` });
  };
  const later = ({ type, target }) => {
    if (type !== "selectionchange") held = type === "pointerdown" && text.root.contains(target);
    clearTimeout(timer);
    timer = setTimeout(show, STILL_MS);
  };
  for (const type of ["selectionchange", "pointerdown", "pointerup"]) document.addEventListener(type, later, { signal });
  return { root };
}

function holds(range, text) {
  const own = new Range();
  own.selectNodeContents(text);
  return range.compareBoundaryPoints(Range.END_TO_START, own) < 0 && range.compareBoundaryPoints(Range.START_TO_END, own) > 0;
}
