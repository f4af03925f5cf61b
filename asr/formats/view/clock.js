// Times and percentages as text.

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds || 0));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

export function lasting(seconds) {
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h} h ${m} min` : `${m} min ${s} s`;
}

export function percent(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)} %` : "none";
}
