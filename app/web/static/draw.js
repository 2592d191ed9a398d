// The two kinds of pictures: the way of the data, and lines over time.

import { bytes, count, duration, rate } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const NAME_PX = 8; // the width of a letter of the names
const BOX = { height: 54, most: 280 };
const WIDE_PX = 760;
const LEAST_PX = 120; // what is narrower is not seen: a picture without a place has a width of 0

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shortened(text, width) {
  const most = Math.max(4, Math.floor(width / NAME_PX));
  if (text.length <= most) return text;
  const head = Math.ceil((most - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}

function box(part, x, y, width) {
  return element("g", { class: part.look ?? "" },
    element("title", {}, part.title ?? part.name),
    element("rect", { x: x + 0.5, y: y + 0.5, width: width - 1, height: BOX.height - 1, rx: 8 }),
    element("text", { class: "kind", x: x + 12, y: y + 20 }, part.kind),
    element("text", { class: "name", x: x + 12, y: y + 40 }, shortened(part.name, width - 24)));
}

function arrow(points, flows) {
  const [[x0, y0], [x, y]] = points.slice(-2);
  const [dx, dy] = [Math.sign(x - x0), Math.sign(y - y0)];
  const back = [x - 7 * dx, y - 7 * dy];
  const head = `M${x} ${y}L${back[0] - 4 * dy} ${back[1] - 4 * dx}L${back[0] + 4 * dy} ${back[1] + 4 * dx}Z`;
  const line = [...points.slice(0, -1), back].map(([px, py]) => `${px} ${py}`).join("L");
  return element("g", { class: flows ? "flows" : "" }, element("path", { d: `M${line}` }), element("path", { class: "head-of", d: head }));
}

function label(text, x, y, anchor = "middle") {
  return element("text", { class: "rate", x, y, "text-anchor": anchor }, text);
}

// The way of the data: `way` has the parts source, worker, sink, and perhaps store and dead; see card.js.
export function drawWay(svg, way, width) {
  if (width < LEAST_PX) return;
  const drawn = width >= WIDE_PX ? across(way, width) : down(way, width);
  svg.setAttribute("viewBox", `0 0 ${width} ${drawn.height}`);
  svg.setAttribute("height", drawn.height);
  svg.replaceChildren(...drawn.parts);
  svg.setAttribute("aria-label", way.words);
}

function across(way, width) {
  const size = Math.min(BOX.most, (width - 2 * 130) / 3);
  const gap = (width - 3 * size) / 2;
  const [worker, sink] = [size + gap, 2 * (size + gap)];
  const [middle, below] = [BOX.height / 2, BOX.height + 40];
  const parts = [box(way.source, 0, 0, size), box(way.worker, worker, 0, size), box(way.sink, sink, 0, size)];
  for (const [x, side] of [[size, way.input], [worker + size, way.output]]) {
    parts.push(arrow([[x + 4, middle], [x + gap - 4, middle]], side.records > 0));
    parts.push(label(`${rate(side.records)} records/s`, x + gap / 2, middle - 8));
    parts.push(label(`${bytes(side.bytes)}/s`, x + gap / 2, middle + 18));
  }
  if (way.store) {
    const x = worker + size / 2;
    const ends = [[x, BOX.height + 4], [x, below - 4]];
    parts.push(box(way.store, worker, below, size));
    parts.push(arrow(way.store.up ? ends.reverse() : ends, way.store.calls > 0));
    parts.push(label(way.store.text, x - 10, BOX.height + 24, "end"));
  }
  if (way.dead) {
    const [x, y] = [worker + size - 20, BOX.height + 18];
    const bend = worker + size + gap / 2;
    parts.push(box(way.dead, sink, below, size));
    parts.push(arrow([[x, BOX.height + 4], [x, y], [bend, y], [bend, below + middle], [sink - 4, below + middle]], false));
  }
  return { parts, height: way.store || way.dead ? below + BOX.height : BOX.height };
}

function down(way, width) {
  const parts = [];
  const spine = 22;
  let y = 0;
  const step = (part, side) => {
    parts.push(arrow([[spine, y + 4], [spine, y + 34]], side.records > 0));
    parts.push(label(`${rate(side.records)} records/s · ${bytes(side.bytes)}/s`, spine + 14, y + 23, "start"));
    parts.push(box(part, 0, y + 38, width));
    y += 38 + BOX.height;
  };
  const branch = (part) => {
    const middle = y + 10 + BOX.height / 2;
    const ends = [[spine, y + 4], [spine, middle], [2 * spine - 2, middle]];
    parts.push(arrow(ends, part.calls > 0), box(part, 2 * spine, y + 10, width - 2 * spine));
    y += 10 + BOX.height;
  };
  parts.push(box(way.source, 0, 0, width));
  y = BOX.height;
  step(way.worker, way.input);
  if (way.store) branch(way.store);
  if (way.dead) branch(way.dead);
  if (way.store || way.dead) parts.push(element("path", { d: `M${spine} ${y - BOX.height / 2}V${y + 4}` }));
  step(way.sink, way.output);
  return { parts, height: y };
}

// The least round number that is no less: 1, 2 or 5 times a power of ten, and of bytes also of 1024.
function ceiling(most, isBytes) {
  let unit = 1;
  while (isBytes && most / unit > 1000) unit *= 1024;
  const power = 10 ** Math.floor(Math.log10(Math.max(most / unit, 1)));
  return unit * power * [1, 2, 5, 10].find((each) => each * power * unit >= most);
}

// Lines over time. `times`: seconds ago, falling; `spans`: how many seconds fit.
export function drawLines(svg, { name, times, input, output, spans, isBytes }, width) {
  if (width < LEAST_PX) return;
  const [left, right, top, bottom] = [58, 4, 8, 132];
  const most = ceiling(Math.max(1, ...input, ...output), isBytes);
  const x = (ago) => (left + (width - left - right) * (1 - ago / spans)).toFixed(1);
  const y = (value) => (bottom - (bottom - top) * (value / most)).toFixed(1);
  const text = isBytes ? bytes : rate;
  const parts = [];
  for (const value of [0, most / 2, most]) {
    parts.push(element("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }));
    parts.push(element("text", { x: left - 8, y: +y(value) + 4, "text-anchor": "end" }, text(value)));
  }
  parts.push(element("text", { x: left, y: bottom + 16 }, `${duration(spans)} ago`));
  parts.push(element("text", { x: width - right, y: bottom + 16, "text-anchor": "end" }, "now"));
  const seen = times.map((ago, index) => index).filter((index) => times[index] <= spans);
  if (seen.length) {
    const path = (values) => `M${seen.map((index) => `${x(times[index])} ${y(values[index])}`).join("L")}`;
    parts.push(element("path", { class: "area", d: `${path(input)}V${bottom}H${x(times[seen[0]])}Z` }));
    parts.push(element("path", { class: "in", d: path(input) }), element("path", { class: "out", d: path(output) }));
  }
  svg.setAttribute("viewBox", `0 0 ${width} 150`);
  svg.replaceChildren(...parts);
  const greatest = (values) => (isBytes ? bytes : count)(Math.max(0, ...values));
  svg.setAttribute("aria-label", `${name}, the last ${duration(spans)}: at most ${greatest(input)} in, ${greatest(output)} out`);
}
