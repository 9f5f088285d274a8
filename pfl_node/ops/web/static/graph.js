// Who learns with whom, as a graph: those who do are drawn together. Positions are kept from one look to the next.

import { h, keyed, put, s, text } from "./dom.js";

const SIZE = 460;
const NAMED = 26; // with more nodes than this a name shows when its node is pointed at
const PARTNERS = 6; // edges of one node, the strongest

export class Graph {
  constructor() {
    this.points = new Map(); // where the forces have put them
    this.places = new Map(); // the same, on the drawing
    this.edges = s("g", { class: "edges" });
    this.dots = s("g", {});
    this.svg = s(
      "svg",
      { class: "graph", viewBox: `0 0 ${SIZE} ${SIZE}`, role: "group", "aria-label": "Who learns with whom" },
      this.edges,
      this.dots,
    );
    this.element = h("div", { class: "square" }, this.svg);
  }

  // Nodes: {id, name, colour, me, label}; ties: how much one learns from another.
  draw(nodes, ties) {
    const edges = strongest(nodes, ties);
    this.settle(nodes, edges);
    const radius = nodes.length > 30 ? 6.5 : nodes.length > 14 ? 9 : 12;
    const most = Math.max(1e-9, ...edges.map((edge) => edge.weight));
    keyed(this.edges, edges, (e) => `${e.a.id} ${e.b.id}`, () => s("line"), (line, e) => this.edge(line, e, most));
    put(this.svg, "class", nodes.length > NAMED ? "graph crowded" : "graph");
    keyed(this.dots, nodes, (n) => n.id, (n) => dot(n), (link, n) => this.dot(link, n, radius));
  }

  edge(line, { a, b, weight }, most) {
    const [from, to] = [this.places.get(a.id), this.places.get(b.id)];
    for (const [name, value] of Object.entries({ x1: from.x, y1: from.y, x2: to.x, y2: to.y })) {
      put(line, name, value.toFixed(1));
    }
    const share = weight / most;
    line.style.stroke = a.colour === b.colour ? a.colour : "var(--line-strong)";
    line.style.strokeWidth = (0.6 + 2.4 * share).toFixed(2);
    line.style.opacity = (0.12 + 0.55 * share).toFixed(2);
  }

  dot(link, node, radius) {
    const place = this.places.get(node.id);
    const [circle, label] = link.children;
    put(link, "href", `#/node/${encodeURIComponent(node.id)}`);
    put(link, "aria-label", node.label);
    put(link, "class", node.me ? "node me" : "node");
    put(circle, "cx", place.x.toFixed(1));
    put(circle, "cy", place.y.toFixed(1));
    put(circle, "r", node.me ? radius + 2 : radius);
    circle.style.fill = node.colour;
    text(circle.firstElementChild, node.label);
    put(label, "x", place.x.toFixed(1));
    put(label, "y", (place.y + radius + 13).toFixed(1));
    text(label, node.name);
  }

  // Springs along the edges, repulsion between all, a little gravity; a few steps where places are known.
  settle(nodes, edges) {
    const fresh = nodes.some((node) => !this.points.has(node.id));
    const shape = edges.map((e) => `${e.a.id} ${e.b.id}`).join();
    if (!fresh && shape === this.shape && nodes.length === this.points.size) return;
    this.shape = shape;
    const start = (i) => ({ x: Math.cos((2 * Math.PI * i) / nodes.length), y: Math.sin((2 * Math.PI * i) / nodes.length) });
    this.points = new Map(nodes.map((node, i) => [node.id, this.points.get(node.id) ?? start(i)]));
    relax([...this.points.values()], linked(nodes, edges), fresh ? 3200 / Math.max(16, nodes.length / 2) : 30);
    this.places = fitted(this.points);
  }
}

function dot(node) {
  return s("a", { class: "node" }, s("circle", {}, s("title")), s("text", { "text-anchor": "middle" }, node.name));
}

function strongest(nodes, ties) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const found = new Map();
  for (const node of nodes) {
    const partners = Object.entries(ties[node.id] ?? {})
      .filter(([id, weight]) => byId.has(id) && weight > 0)
      .sort((a, b) => b[1] - a[1])
      .slice(0, PARTNERS);
    for (const [id, weight] of partners) {
      const [a, b] = node.id < id ? [node.id, id] : [id, node.id];
      const edge = found.get(`${a} ${b}`) ?? { a: byId.get(a), b: byId.get(b), weight: 0 };
      edge.weight += weight;
      found.set(`${a} ${b}`, edge);
    }
  }
  return [...found.values()].sort((x, y) => x.weight - y.weight);
}

function linked(nodes, edges) {
  const place = new Map(nodes.map((node, i) => [node.id, i]));
  const most = Math.max(1e-9, ...edges.map((edge) => edge.weight));
  return edges.map((e) => [place.get(e.a.id), place.get(e.b.id), e.weight / most]);
}

function relax(points, links, steps) {
  const ideal = 1.6 / Math.sqrt(Math.max(2, points.length));
  for (let step = 0; step < steps; step += 1) {
    const reach = 0.12 * (1 - step / steps) + 0.004;
    const force = points.map(() => [0, 0]);
    for (let i = 0; i < points.length; i += 1) {
      for (let j = i + 1; j < points.length; j += 1) push(points, force, i, j, (d) => (ideal * ideal) / d);
      force[i][0] -= 0.35 * points[i].x;
      force[i][1] -= 0.35 * points[i].y;
    }
    for (const [i, j, weight] of links) push(points, force, i, j, (d) => -weight * ((d * d) / ideal));
    points.forEach((p, i) => {
      const [fx, fy] = force[i];
      const length = Math.hypot(fx, fy) || 1;
      p.x += (fx / length) * Math.min(length, reach);
      p.y += (fy / length) * Math.min(length, reach);
    });
  }
}

function push(points, force, i, j, strength) {
  const dx = points[i].x - points[j].x || 1e-3 * (i - j);
  const dy = points[i].y - points[j].y || 1e-3;
  const d = Math.max(0.01, Math.hypot(dx, dy));
  const f = strength(d) / d;
  force[i][0] += dx * f;
  force[i][1] += dy * f;
  force[j][0] -= dx * f;
  force[j][1] -= dy * f;
}

function fitted(points) {
  const [xs, ys] = ["x", "y"].map((axis) => [...points.values()].map((point) => point[axis]));
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = (SIZE - 96) / Math.max(x1 - x0, y1 - y0, 1e-6);
  const place = ({ x, y }) => ({ x: SIZE / 2 + (x - (x0 + x1) / 2) * scale, y: SIZE / 2 - 6 + (y - (y0 + y1) / 2) * scale });
  return new Map([...points].map(([id, point]) => [id, place(point)]));
}
