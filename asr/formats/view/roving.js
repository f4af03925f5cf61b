// A roving tab stop: a list has one tab stop, and arrow keys, Home and End move it.

// `items()` are the reachable elements, in order. The returned function keeps exactly one of them in the
// tab order: call it after the list has changed, with the preferred one.
export function roving(root, items, { onmove = (item) => item.focus() } = {}) {
  const stop = (wanted) => {
    const all = items();
    const one = all.includes(wanted) ? wanted : all.find((item) => item.tabIndex === 0) || all[0];
    for (const item of all) item.tabIndex = item === one ? 0 : -1;
  };
  root.addEventListener("focusin", (event) => stop(event.target));
  root.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const all = items();
    const here = all.indexOf(event.target);
    if (here < 0) return;
    const to = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    onmove(all[Math.min(Math.max(to, 0), all.length - 1)]);
  });
  return stop;
}
