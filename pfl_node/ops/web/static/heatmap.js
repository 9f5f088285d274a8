// Who learned from whom, as a square of cells: a row learns from its columns. Drawn on a canvas, as 50 nodes are 2500 cells.

import { colour, h, put, text } from "./dom.js";
import { count } from "./format.js";

const NAMED = 26; // rows and columns with names
const SPACE = 78; // pixels for names

export class Heatmap {
  constructor() {
    this.canvas = h("canvas", { class: "heat", role: "img", tabindex: "0" });
    this.readout = h("p", { class: "readout dim", role: "status" });
    this.element = h("div", { class: "square" }, this.canvas);
    this.foot = h("div", { class: "heat-foot" }, this.readout, scale());
    this.nodes = [];
    this.cell = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(this.under(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(this.element);
  }

  // Nodes in order: {id, name, colour}; ties: how much a row learns from a column; `word` says what is counted.
  draw(nodes, ties, word) {
    [this.nodes, this.ties, this.word] = [nodes, ties, word];
    this.most = Math.max(1e-9, ...nodes.flatMap((row) => nodes.map((column) => this.weight(row, column))));
    const pairs = nodes.flatMap((row) => nodes.map((column) => this.weight(row, column))).filter((w) => w > 0).length;
    put(
      this.canvas,
      "aria-label",
      `Heatmap of ${nodes.length} nodes: a row learns from its columns; ${pairs} pairs do. The arrow keys walk through the cells.`,
    );
    this.paint();
    this.point(this.cell);
  }

  weight(row, column) {
    return this.ties[row.id]?.[column.id] ?? 0;
  }

  paint() {
    const size = this.element.clientWidth;
    const n = this.nodes.length;
    if (!size || !n) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.canvas.height = Math.round(size * ratio);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.names = n <= NAMED && size > 300;
    this.edge = this.names ? SPACE : 14;
    this.side = (size - this.edge - 2) / n;
    this.cells(pen);
    this.borders(pen, size);
    if (this.cell) this.frame(pen);
  }

  cells(pen) {
    const [empty, full] = [rgb(colour("--cell")), rgb(colour("--accent"))];
    const gap = this.side > 10 ? 1 : 0;
    this.nodes.forEach((row, r) => {
      this.nodes.forEach((column, c) => {
        const share = r === c ? null : Math.sqrt(this.weight(row, column) / this.most);
        pen.fillStyle = share === null ? colour("--line") : mix(empty, full, share);
        pen.fillRect(this.edge + c * this.side, this.edge + r * this.side, this.side - gap, this.side - gap);
      });
    });
  }

  borders(pen) {
    pen.font = `${Math.min(11, this.side - 2)}px system-ui, sans-serif`;
    this.nodes.forEach((node, i) => {
      const middle = this.edge + (i + 0.5) * this.side;
      pen.fillStyle = resolve(node.colour);
      const thick = 4;
      pen.fillRect(this.edge - thick - 2, this.edge + i * this.side, thick, this.side - 1);
      pen.fillRect(this.edge + i * this.side, this.edge - thick - 2, this.side - 1, thick);
      if (!this.names) return;
      pen.fillStyle = colour("--dim");
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(short(node.name), this.edge - 10, middle);
      pen.save();
      pen.translate(middle, this.edge - 10);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(short(node.name), 0, 0);
      pen.restore();
    });
  }

  frame(pen) {
    const [r, c] = this.cell;
    pen.strokeStyle = colour("--text");
    pen.lineWidth = 2;
    pen.strokeRect(this.edge + c * this.side, this.edge + r * this.side, this.side, this.side);
  }

  under(event) {
    const place = (offset) => Math.floor((offset - this.edge) / this.side);
    const [r, c] = [place(event.offsetY), place(event.offsetX)];
    return this.nodes[r] && this.nodes[c] ? [r, c] : null;
  }

  key(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move || !this.nodes.length) return;
    event.preventDefault();
    const last = this.nodes.length - 1;
    const [r, c] = this.cell ?? [0, 0];
    const inside = (value) => Math.min(last, Math.max(0, value));
    this.point(this.cell ? [inside(r + move[0]), inside(c + move[1])] : [0, 0]);
  }

  point(cell) {
    const valid = cell && this.nodes[cell[0]] && this.nodes[cell[1]] ? cell : null;
    const moved = String(valid) !== String(this.cell);
    this.cell = valid;
    text(this.readout, valid ? this.sentence(...valid) : "A row learns from its columns. Point at a cell.");
    if (moved) this.paint();
  }

  sentence(r, c) {
    const [row, column] = [this.nodes[r], this.nodes[c]];
    if (r === c) return `${row.name} itself`;
    const weight = this.weight(row, column);
    const figure = Number.isInteger(weight) ? count(weight) : weight.toFixed(1);
    return `${row.name} learned from ${column.name}: ${figure} ${this.word}`;
  }
}

function scale() {
  return h("span", { class: "scale", "aria-hidden": "true" }, "less", h("i", { class: "ramp" }), "more");
}

function short(name) {
  return name.length > 11 ? `${name.slice(0, 10)}…` : name;
}

function resolve(value) {
  const variable = /^var\((--[\w-]+)\)$/.exec(value);
  return variable ? colour(variable[1]) : value;
}

function rgb(text) {
  return text.match(/[\d.]+/g).slice(0, 3).map(Number);
}

function mix(from, to, share) {
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * share)).join(",")})`;
}
