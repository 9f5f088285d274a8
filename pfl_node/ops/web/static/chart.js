// Lines over rounds, drawn as SVG. A pointer or the arrow keys show the figures of a round.

import { h, put, s } from "./dom.js";
import { known } from "./format.js";

const EDGE = { top: 10, right: 14, bottom: 26, left: 58 };
const HEIGHT = 230;
const LISTED = 6;

export class Chart {
  // `low` and `high`: no figure lies beyond; `zero`: the axis begins there.
  constructor(title, { format, tick = format, low = null, high = null, zero = false }) {
    this.title = title;
    this.format = format;
    this.tick = tick; // the same for marks of the axis, which are round numbers
    this.bounds = [low, high];
    this.zero = zero;
    this.lines = [];
    this.at = null; // the round that is pointed at
    this.svg = s("svg", { class: "chart", role: "img", tabindex: "0" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.empty = h("p", { class: "empty" }, "Nothing has been measured yet.");
    this.element = h("div", { class: "plot" }, this.svg, this.tip, this.empty);
    this.svg.addEventListener("pointermove", (event) => this.point(this.round(event.offsetX)));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(this.element);
  }

  // Lines: {name, colour, wide, quiet, dashed, points: [[round, value]]}; later ones lie above.
  draw(lines) {
    this.lines = lines
      .map((line) => ({ ...line, points: line.points.filter(([, y]) => known(y)) }))
      .filter((line) => line.points.length);
    this.paint();
  }

  paint() {
    const width = this.element.clientWidth;
    put(this.svg, "hidden", this.lines.length === 0);
    this.empty.hidden = this.lines.length > 0;
    if (!width || !this.lines.length) return;
    const all = this.lines.flatMap((line) => line.points);
    const xs = all.map(([x]) => x);
    const ys = all.map(([, y]) => y);
    const [low, high] = this.bounds;
    const y = nice(this.zero ? 0 : Math.min(...ys), Math.max(...ys), low, high);
    const x0 = Math.min(...xs);
    const x1 = Math.max(Math.max(...xs), x0 + 1);
    this.span = [x0, x1];
    this.x = (value) => EDGE.left + ((value - x0) / (x1 - x0)) * (width - EDGE.left - EDGE.right);
    this.y = (value) => HEIGHT - EDGE.bottom - ((value - y.low) / (y.high - y.low)) * (HEIGHT - EDGE.top - EDGE.bottom);
    put(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    put(this.svg, "height", HEIGHT);
    put(this.svg, "aria-label", this.summary());
    this.cross = s("g", { class: "cross" });
    this.svg.replaceChildren(
      this.grid(y, width),
      this.axis(x0, x1, width),
      ...this.lines.map((line) => this.line(line)),
      this.cross,
    );
    this.point(this.at);
  }

  grid({ ticks }, width) {
    const rows = ticks.map((tick) =>
      s(
        "g",
        {},
        s("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: this.y(tick), y2: this.y(tick) }),
        s("text", { class: "mark", x: EDGE.left - 8, y: this.y(tick) + 4, "text-anchor": "end" }, this.tick(tick)),
      ),
    );
    return s("g", {}, ...rows);
  }

  axis(x0, x1, width) {
    const steps = nice(x0 + 1, x1 + 1, x0 + 1, x1 + 1, Math.max(2, Math.floor(width / 110))).ticks;
    const marks = steps
      .filter(Number.isInteger)
      .map((tick) =>
        s("text", { class: "mark", x: this.x(tick - 1), y: HEIGHT - 8, "text-anchor": "middle" }, String(tick)),
      );
    const word = s("text", { class: "mark", x: EDGE.left - 8, y: HEIGHT - 8, "text-anchor": "end" }, "round");
    return s("g", {}, word, ...marks);
  }

  line({ colour, wide, quiet, dashed, points }) {
    const places = points.map(([x, y]) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`);
    const words = ["line", wide && "wide", quiet && "quiet", dashed && "dashed"].filter(Boolean).join(" ");
    if (points.length > 1) {
      const line = s("path", { class: words, d: `M${places.join("L")}` });
      line.style.stroke = colour;
      return line;
    }
    const dot = s("circle", { cx: this.x(points[0][0]), cy: this.y(points[0][1]), r: wide ? 4 : 3 });
    dot.style.fill = colour;
    return dot;
  }

  round(offset) {
    if (!this.span) return null;
    const [x0, x1] = this.span;
    const width = this.element.clientWidth - EDGE.left - EDGE.right;
    return Math.round(Math.min(x1, Math.max(x0, x0 + ((offset - EDGE.left) / width) * (x1 - x0))));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.span) return;
    event.preventDefault();
    const [x0, x1] = this.span;
    this.point(Math.min(x1, Math.max(x0, (this.at ?? x1) + step)));
  }

  point(round) {
    this.at = round;
    this.tip.hidden = round === null || !this.lines.length;
    if (!this.cross) return;
    this.cross.replaceChildren();
    if (this.tip.hidden) return;
    const found = this.lines
      .map((line) => ({ line, point: nearest(line.points, round) }))
      .sort((a, b) => Number(b.line.wide ?? false) - Number(a.line.wide ?? false) || b.point[1] - a.point[1]);
    const x = this.x(round);
    this.cross.append(s("line", { x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
    for (const { line, point } of found.slice(0, LISTED)) {
      const dot = s("circle", { cx: this.x(point[0]), cy: this.y(point[1]), r: 3 });
      dot.style.fill = line.colour;
      this.cross.append(dot);
    }
    this.tell(round, found);
    const left = x > this.element.clientWidth / 2;
    this.tip.style.left = left ? "auto" : `${x + 12}px`;
    this.tip.style.right = left ? `${this.element.clientWidth - x + 12}px` : "auto";
  }

  tell(round, found) {
    const rows = found.slice(0, LISTED).map(({ line, point }) => {
      const mark = h("i", { class: "dot" });
      mark.style.background = line.colour;
      return h("div", { class: "tip-row" }, mark, h("span", {}, line.name), h("b", {}, this.format(point[1])));
    });
    const more = found.length > LISTED ? [h("div", { class: "dim" }, `and ${found.length - LISTED} more`)] : [];
    this.tip.replaceChildren(h("div", { class: "dim" }, `round ${round + 1}`), ...rows, ...more);
  }

  summary() {
    const last = this.lines
      .filter((line) => !line.quiet)
      .map((line) => `${line.name} ${this.format(line.points.at(-1)[1])}`);
    return `${this.title} over rounds. Now: ${last.join(", ")}. The arrow keys walk through the rounds.`;
  }
}

function nearest(points, round) {
  let best = points[0];
  for (const point of points) if (Math.abs(point[0] - round) < Math.abs(best[0] - round)) best = point;
  return best;
}

// Round numbers for an axis that holds all of low..high, within hard bounds where there are any.
export function nice(low, high, hardLow = null, hardHigh = null, wanted = 4) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((candidate) => candidate >= rough) ?? rough;
  let from = Math.floor(low / step) * step;
  let to = Math.ceil(high / step) * step;
  if (from === to) to += step;
  if (hardLow !== null) from = Math.max(from, hardLow);
  if (hardHigh !== null) to = Math.min(to, hardHigh);
  if (to <= from) to = from + step;
  const ticks = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return { low: from, high: to, ticks };
}

export function legend(entries) {
  return h(
    "p",
    { class: "legend" },
    ...entries.map(([name, colour]) => {
      const mark = h("i", { class: "dot" });
      mark.style.background = colour;
      return h("span", {}, mark, name);
    }),
  );
}

