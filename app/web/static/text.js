// Numbers as people read them, with their units; and texts, which go into the page as text, never as markup.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const GAP = "\u00a0"; // no line ends between a number and its unit
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const UNKNOWN = "–";

export function count(value) {
  return value === null ? UNKNOWN : plain.format(value);
}

export function rate(value) {
  return value === null ? UNKNOWN : value >= 1000 ? plain.format(value) : short.format(value);
}

export function bytes(value) {
  if (value === null) return UNKNOWN;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${short.format(value)}${GAP}${UNITS[unit]}`;
}

export function seconds(value) {
  if (value === null) return UNKNOWN;
  return value < 1 ? `${short.format(value * 1000)}${GAP}ms` : `${short.format(value)}${GAP}s`;
}

export function percent(value) {
  const shown = value >= 10 ? value.toFixed(0) : value > 0 && value < 0.1 ? "< 0.1" : short.format(value);
  return `${shown}${GAP}%`;
}

export function duration(value) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => value >= size);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([size, unit], index, [[outer]]) =>
    `${Math.floor((index ? value % outer : value) / size)} ${unit}`).filter((part, index) => !index || !part.startsWith("0 ")).join(" ");
}

export function plural(number, one, many = `${one}s`) {
  return `${plain.format(number)} ${number === 1 ? one : many}`;
}

export function put(place, text) {
  if (place.textContent !== text) place.textContent = text;
}
