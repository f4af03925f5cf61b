// Elements without markup, so that no transcript or name becomes code, and times as text.

export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}

export function button(name, onclick, more = {}) {
  return h("button", { type: "button", onclick, ...more }, name);
}

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds || 0));
  const [hours, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}
