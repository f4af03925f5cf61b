// Figures: tokens by source, acceptance by draft position, and the run.
import { lasting, percent } from "./clock.js";
import { h } from "./dom.js";

export const WRITERS = [
  ["accepted", "Drafted, accepted", "proposed by the draft and kept by the target"],
  ["correction", "Corrected", "the target's own token after it refused a draft"],
  ["bonus", "Bonus", "the target's own token after it kept a whole draft"],
  ["plain", "Plain", "the target's own token where nothing was drafted"],
];

export function known(model) {
  return Boolean(model.figures.written) || model.words.some((word) => word.sources.length);
}

export function figures(model) {
  const written = model.figures.written || counted(model);
  const all = WRITERS.reduce((sum, [who]) => sum + (written[who] || 0), 0);
  const bar = h("div", { class: "shares", "aria-hidden": "true" });
  const rows = WRITERS.filter(([who]) => written[who]).map(([who, name, meaning]) => {
    const part = h("span", { class: `by-${who}` });
    part.style.flexGrow = written[who];
    bar.append(part);
    return h(
      "li",
      {},
      h("span", { class: `swatch by-${who}`, "aria-hidden": "true" }),
      h("span", { class: `w by-${who}` }, name),
      h("b", {}, percent(written[who], all)),
      h("small", {}, `${written[who]} tokens, ${meaning}`),
    );
  });
  return h(
    "section",
    { class: "figures", "aria-label": "Who wrote it" },
    h("p", { class: "quiet" }, summary(model.figures, all)),
    bar,
    h("ul", { class: "writers" }, rows),
    depths(model.figures),
  );
}

function summary(found, all) {
  if (!found.drafted) return `${all} tokens. Nothing was drafted: the target wrote all of it, one token at a time.`;
  const length = found.mean_acceptance_length;
  return (
    `${percent(found.accepted, found.drafted)} of ${found.drafted} drafted tokens accepted` +
    (length ? `; ${length.toFixed(2)} tokens for each pass of the target, in ${found.rounds} passes.` : ".")
  );
}

function depths(found) {
  const judged = found.judged_at_depth || [];
  if (!judged.length) return null;
  const rows = judged.map((count, n) => {
    const kept = found.accepted_at_depth[n];
    const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span"));
    bar.firstChild.style.width = `${(100 * kept) / count}%`;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, String(n + 1)),
      h("td", { class: "wide" }, bar),
      h("td", {}, percent(kept, count)),
      h("td", { class: "quiet" }, `${kept} of ${count}`),
    );
  });
  return h(
    "table",
    { class: "depths" },
    h("caption", {}, "Drafts accepted, of those whose turn came, by their place in the draft"),
    h(
      "thead",
      { class: "unseen" },
      h("tr", {}, ["Place", "Share", "Accepted", "Count"].map((name) => h("th", { scope: "col" }, name))),
    ),
    h("tbody", {}, rows),
  );
}

function counted(model) {
  const found = {};
  for (const word of model.words) for (const who of word.sources) found[who] = (found[who] || 0) + 1;
  return found;
}

// [[name, value], ...] of the run; unknown ones are left out.
export function facts(model) {
  const { figures: run, settings } = model;
  const found = [];
  if (run.wall_s) found.push(["Time taken", `${lasting(run.wall_s)}, ${(model.duration / run.wall_s).toFixed(1)}× real time`]);
  if (settings.model) found.push(["Model", settings.draft ? `${settings.model}, drafted by ${settings.draft}` : settings.model]);
  if (settings.device) found.push(["On", [settings.device, settings.dtype].filter(Boolean).join(", ")]);
  return found;
}

export function languageName(language) {
  if (language.length > 3) return language[0].toUpperCase() + language.slice(1);
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(language);
  } catch {
    return language;
  }
}
