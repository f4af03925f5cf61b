// The saved versions: what was changed in each, how it differs from the text now, and a way back to it.
import { button, h } from "./dom.js";
import { alike, parts } from "./edits.js";

// Returns {root, open()}; `keeper` as in saving.js.
export function versions(edits, keeper) {
  let chosen = null;
  const list = h("ul", {});
  const text = h("p", { class: "version", dir: "auto", tabindex: "0", role: "region", "aria-label": "The version" });
  const back = button("Restore", () => (root.close(), edits.do(...chosen)), { class: "main" });
  const about = h("p", { class: "note" }, "Marked: only in this version. Struck out: only in the text now.");
  const told = h("div", { class: "told" }, about, text, h("div", { class: "tools" }, back, button("Close", () => root.close())));
  const root = h("dialog", { class: "versions", "aria-label": "Versions" }, h("h2", {}, "Versions"), list, told);
  // Shows a version beside the text now.
  const look = async (entry, load, note) => {
    for (const one of list.children) one.firstChild.setAttribute("aria-pressed", String(one === entry));
    back.disabled = true;
    const shown = await Promise.resolve(load()).catch((error) => error);
    if (entry.firstChild.getAttribute("aria-pressed") !== "true") return; // another was chosen meanwhile
    if (shown instanceof Error) return text.replaceChildren(shown.message);
    chosen = [shown, `Restored: ${note}`];
    text.replaceChildren(...compared(edits.state, shown, edits.spaced));
    text.querySelector("ins, del")?.scrollIntoView({ block: "nearest" });
    back.disabled = false;
  };
  const entry = (load, note, when = "") => {
    const own = h("li", {}, h("button", { type: "button", onclick: () => look(own, load, when ? `${note}, ${when}` : note) }, note, h("span", { class: "note" }, when)));
    return own;
  };
  const open = async () => {
    const { history } = await keeper.version();
    const entries = history.toReversed().map(({ version, saved_at: at, note }) => {
      const when = new Date(1000 * at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      return entry(async () => edits.unpacked(await keeper.version(version)), note || "Corrected", when);
    });
    list.replaceChildren(...entries, entry(() => edits.original, "As it was transcribed"));
    root.showModal();
    list.querySelector("button").click();
  };
  return { root, open };
}

// Their words, in pieces that begin at the same time in both.
function compared(now, then, spaced) {
  const [mine, theirs] = [now, then].map(({ segments }) => new Set(segments.map(({ start }) => start)));
  const rows = new Map([-1, ...mine.intersection(theirs)].map((start) => [start, [[], []]]));
  [now, then].forEach(({ segments, names }, side) => {
    let [row, before] = [rows.get(-1), null];
    for (const { start, text, speaker } of segments) {
      row = rows.get(start) || row;
      if (speaker !== before) row[side].push(`\n${names[speaker] || speaker || "Unknown speaker"}: `);
      before = speaker;
      row[side].push(...parts(text, spaced));
    }
  });
  return [...rows.values()].flatMap(([old, fresh]) => {
    const [head, tail] = alike(old, fresh);
    const [gone, come] = [old, fresh].map((words) => words.slice(head, words.length - tail).join(""));
    const middle = [gone && h("del", {}, gone), come && h("ins", {}, come)];
    return [fresh.slice(0, head).join(""), ...middle, fresh.slice(fresh.length - tail).join("")];
  }).filter(Boolean);
}
