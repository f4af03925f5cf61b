// Search in all recordings, by the server; a link goes to each place.
import { persistently } from "./connection.js";
import { clock, h } from "./dom.js";
import { nameOf } from "./list.js";
import { folded } from "./transcript.js";

const REST_MS = 250; // after a key
const MOST = 200; // recordings that are shown
const AROUND = 5; // words that are shown before a place

const element = (id) => document.getElementById(id);

export class Finder {
  // `onerror(error)` if the server does not search.
  constructor(store, onerror) {
    Object.assign(this, { store, onerror, stop: new AbortController() });
    element("find").addEventListener("input", () => {
      clearTimeout(this.resting);
      this.resting = setTimeout(() => this.#search(element("find").value.trim()), REST_MS);
    });
    addEventListener("hashchange", () => this.#mark());
  }

  close() {
    element("find").value = "";
    this.#search("");
  }

  async #search(words) {
    this.stop.abort();
    const { signal } = (this.stop = new AbortController());
    const [said, hits] = [element("found"), element("hits")];
    hits.replaceChildren();
    said.textContent = words && "Searching";
    if (!words) return;
    try {
      let [after, places] = ["", 0];
      do {
        const found = await persistently(() => this.store.search(words, after, signal), { signal });
        for (const { job, count, places: shown } of found.data) {
          hits.append(row(job, count, shown, words));
          places += count;
        }
        after = found.after;
      } while (after && hits.children.length < MOST);
      const told = `${places} ${places === 1 ? "place" : "places"} in ${hits.children.length} ${hits.children.length === 1 ? "recording" : "recordings"}`;
      said.textContent = hits.children.length ? `${told}${after ? "; older ones were not searched" : ""}` : "Not found";
      this.#mark();
    } catch (error) {
      if (signal.aborted) return;
      said.textContent = "";
      this.onerror(error);
    }
  }

  // The place that is open.
  #mark() {
    for (const link of element("hits").querySelectorAll("a")) link.toggleAttribute("aria-current", link.hash === location.hash);
  }
}

function row(job, count, places, words) {
  const href = `#${encodeURIComponent(job.id)}`;
  const links = places.map(({ start, text }) => {
    const to = `${href}?${new URLSearchParams({ find: words, at: start })}`;
    return h("a", { class: "place", href: to }, h("span", { class: "at" }, clock(start)), h("span", { dir: "auto" }, marked(text, folded(words))));
  });
  const more = count > links.length ? h("p", { class: "note" }, `and ${count - links.length} more`) : null;
  return h("li", {}, h("a", { class: "label", href, dir: "auto" }, nameOf(job)), links, more);
}

// The text from a little before the first place on, where what is searched for is marked.
function marked(text, wanted) {
  const words = text.split(/\s+/);
  const part = (start, stop) => words.slice(start, stop).join(" ");
  const behind = words.findIndex((_, n) => folded(part(0, n + 1)).includes(wanted)) + 1;
  if (!behind) return text; // it goes on behind this text
  const first = words.findLastIndex((_, n) => folded(part(n, behind)).includes(wanted));
  const from = Math.max(0, first - AROUND);
  return [`${from ? "… " : ""}${part(from, first)} `, h("mark", {}, part(first, behind)), ` ${part(behind)}`];
}
