// Warnings about the text.
import { h } from "./dom.js";

const FIRST = 4;

// `notices` are {code, message}.
export function warnings(notices) {
  if (!notices.length) return null;
  const lines = notices.map(({ message }) => h("li", { dir: "auto" }, message));
  const rest = lines.slice(FIRST);
  return h(
    "section",
    { class: "warnings", "aria-label": "Warnings" },
    h(
      "h2",
      {},
      h("span", { class: "icon", "aria-hidden": "true" }, "!"),
      notices.length > 1 ? `${notices.length} warnings about this transcript` : "A warning about this transcript",
    ),
    h("ul", {}, lines.slice(0, FIRST)),
    rest.length ? h("details", {}, h("summary", {}, `${rest.length} more`), h("ul", {}, rest)) : null,
  );
}
