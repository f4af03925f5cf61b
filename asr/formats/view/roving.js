// One tab stop for a list: the arrow keys, Home and End go on from there.

// `items()` are what can be reached, in order. The function that is returned keeps exactly one of them
// in the tab order: call it when the list has changed, with the one to prefer.
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
