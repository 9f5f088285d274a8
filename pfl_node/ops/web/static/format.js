// Figures as people read them.

export const NONE = "–";
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function percent(value, digits = 1) {
  return known(value) ? `${(100 * value).toFixed(digits)} %` : NONE;
}

export function loss(value) {
  if (!known(value)) return NONE;
  return Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.001) ? value.toExponential(1) : value.toFixed(3);
}

// A figure of a task by its name: the accuracy is a share, other metrics are numbers.
export function figure(name, value, digits = 1) {
  return name === "accuracy" ? percent(value, digits) : loss(value);
}

export function bytes(value) {
  if (!known(value)) return NONE;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en").replaceAll(",", "\u2009") : NONE;
}

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function clock(time) {
  return new Date(1000 * time).toLocaleTimeString("en-GB");
}

// Why a node waits, and until when; empty: it does not wait for its next round.
export function nextRound(next) {
  if (!next) return "";
  if (!next.at) return `waits for another node (${next.why})`;
  const today = new Date(next.at) - Date.now() < 86400e3;
  return `next round at ${today ? next.at.slice(11, 16) : next.at.slice(0, 16).replace("T", " ")} (${next.why})`;
}

export function sum(table) {
  return Object.values(table ?? {}).reduce((a, b) => a + b, 0);
}

export function plural(n, one, many) {
  return `${count(n)} ${n === 1 ? one : many}`;
}
