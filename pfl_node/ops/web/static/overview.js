// The first view: how this node does, how the swarm does, and everybody in it.

import { Chart, legend } from "./chart.js";
import { card, choice, h, keyed, put, text } from "./dom.js";
import { bytes, count, duration, figure, known, loss, nextRound, percent, plural, sum } from "./format.js";
import { health } from "./health.js";
import { clusterColour, headline, nodes, present, store, titled } from "./store.js";
import { tiles } from "./tiles.js";

const ME = "var(--text)";
export const SHARE = { format: (v) => percent(v, 0), low: 0, high: 1 };

// The figure that the task compares models by may be known only later.
export function overview(root) {
  let name = headline();
  let draw = view(root, name);
  return (what) => {
    if (headline() !== name) {
      name = headline();
      draw = view(root, name);
    }
    draw(what);
  };
}

function view(root, name) {
  const figures = tiles();
  const share = name === "accuracy" || name === "loss";
  const scores = new Chart(titled(share ? "accuracy" : name), share ? SHARE : { format: loss, tick: String });
  const losses = new Chart("Loss", { format: loss, tick: String, low: 0 });
  let split = "test";
  const pick = choice("Data", [["test", "test"], ["val", "validation"]], split, (name) => {
    split = name;
    curves();
  });
  const names = legend([["this node", ME], ["mean of all (dashed)", ME], ["others, by cluster", "var(--lone)"]]);
  const left = card(`${titled(share ? "accuracy" : name)} over rounds`, scores.element, names);
  left.firstElementChild.append(pick);
  const table = members();
  const exchange = health();
  root.replaceChildren(
    figures.element,
    exchange.element,
    h("div", { class: "two" }, left, card("Loss over rounds", losses.element)),
    table.element,
  );

  function curves() {
    scores.draw(lines(`${split}_${share ? "accuracy" : name}`));
    losses.draw(lines(`${split}_loss`));
  }

  return (what) => {
    if (what !== "swarm" && store.status) {
      figures.draw(facts(store.status));
      exchange.draw(store.status.health);
    }
    if (what === "tick") return;
    curves();
    table.draw();
  };
}

function facts(status) {
  const { val = {}, test = {} } = status.measured ?? {};
  const everybody = nodes();
  const alive = everybody.filter(present).length;
  const refused = sum(status.refused);
  return [
    ["Round", count(status.round), nextRound(status.next_round) || (status.rounds ? `of ${count(status.rounds)}` : "without an end")],
    ...score(status, test, val),
    ["Test loss", loss(test.loss), `validation ${loss(val.loss)}`],
    ["Nodes alive", count(alive || 1), `of ${plural(everybody.length || 1, "node", "nodes")} known`],
    ["Sent", bytes(status.bytes_sent), `received ${bytes(status.bytes_received)}`],
    ["Refused", count(refused), refused ? Object.keys(status.refused).join(", ") : "no message", refused ? "warn" : ""],
  ];
}

// The tile of the task's headline, unless that is the loss, which has a tile of its own.
export function score(node, test, val) {
  const name = headline(node);
  return name === "loss" ? [] : [[`Test ${name}`, figure(name, test[name]), `validation ${figure(name, val[name])}`]];
}

// Every node quietly in the colour of its cluster, above them the mean, above all this node.
function lines(figure) {
  const everybody = nodes().filter((node) => store.curves.has(node.id));
  const points = (id) => (store.curves.get(id) ?? []).map((p) => [p.round, p[figure]]);
  const each = everybody
    .filter((node) => !node.me)
    .map((node) => ({ name: node.name, colour: clusterColour(node.id), quiet: true, points: points(node.id) }));
  const me = everybody.find((node) => node.me);
  const mine = me ? [{ name: me.name, colour: ME, wide: true, points: points(me.id) }] : [];
  return [...each, ...(each.length ? [mean(everybody, points)] : []), ...mine];
}

// At the rounds that somebody has: the mean of what each node had last.
function mean(everybody, points) {
  const curves = everybody.map((node) => points(node.id).filter(([, y]) => known(y))).filter((curve) => curve.length);
  const rounds = [...new Set(curves.flatMap((curve) => curve.map(([x]) => x)))].sort((a, b) => a - b);
  const at = curves.map(() => -1);
  const found = [];
  for (const round of rounds) {
    const values = [];
    curves.forEach((curve, i) => {
      while (at[i] + 1 < curve.length && curve[at[i] + 1][0] <= round) at[i] += 1;
      if (at[i] >= 0) values.push(curve[at[i]][1]);
    });
    if (values.length === curves.length) found.push([round, values.reduce((a, b) => a + b, 0) / values.length]);
  }
  return { name: "mean of all", colour: ME, wide: true, dashed: true, points: found };
}

// -- everybody ------------------------------------------------------------------------------------------------

const COLUMNS = [
  { name: "Node", value: (n) => n.name, first: "name" },
  { name: "State", value: (n) => n.state },
  { name: "Round", value: (n) => n.round, number: true },
  { name: "Score", value: (n) => n.measured?.test?.[headline(n)] ?? -Infinity, number: true },
  { name: "Loss", value: (n) => n.measured?.test?.loss ?? Infinity, number: true, wide: true },
  { name: "Sent", value: (n) => n.bytes_sent ?? -1, number: true, wide: true },
  { name: "Received", value: (n) => n.bytes_received ?? -1, number: true, wide: true },
  { name: "Refused", value: (n) => sum(n.refused), number: true, wide: true },
];

function members() {
  let [column, down] = [COLUMNS[0], false];
  const heads = COLUMNS.map((c) => {
    const button = h("button", { type: "button", onclick: () => sort(c) }, c.name);
    return h("th", { class: classes(c), scope: "col" }, button);
  });
  const body = h("tbody");
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body);
  const empty = h("p", { class: "empty" }, "Looking for the other nodes.");
  const element = card("Nodes", h("div", { class: "wide-table" }, table), empty);

  function sort(by) {
    [column, down] = [by, by === column ? !down : by.number ?? false];
    draw();
  }

  function draw() {
    const sorted = nodes().sort((a, b) => compare(column.value(a), column.value(b)) || compare(a.name, b.name));
    if (down) sorted.reverse();
    heads.forEach((head, i) =>
      put(head, "aria-sort", COLUMNS[i] === column ? (down ? "descending" : "ascending") : null),
    );
    empty.hidden = sorted.length > 0;
    keyed(body, sorted, (node) => node.id, row, update);
  }

  return { element, draw };
}

function compare(a, b) {
  return typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function classes(column) {
  return [column.number ? "number" : "", column.wide ? "roomy" : ""].join(" ").trim() || null;
}

function row() {
  const link = h("a", {}, h("i", { class: "dot" }), h("span"), h("span", { class: "self" }));
  const bar = h("span", { class: "meter", "aria-hidden": "true" }, h("i"));
  const cells = COLUMNS.map((column, i) => {
    const inside = i === 0 ? [link] : i === 3 ? [bar, h("span")] : [];
    return h("td", { class: classes(column) }, ...inside);
  });
  return h("tr", {}, ...cells);
}

function update(tr, node) {
  const [name, state, round, score, lossCell, sent, received, refused] = tr.children;
  const link = name.firstElementChild;
  put(link, "href", `#/node/${encodeURIComponent(node.id)}`);
  link.firstElementChild.style.background = clusterColour(node.id);
  text(link.children[1], node.name);
  text(link.children[2], node.me ? "this node" : "");
  put(tr, "class", present(node) ? null : "gone");
  text(state, doing(node));
  put(state, "class", node.state === "suspect" || node.error ? "warn" : null);
  text(round, count(node.round));
  const test = node.measured?.test ?? {};
  const name_ = headline(node);
  const value = test[name_];
  score.firstElementChild.firstElementChild.style.width = `${name_ === "accuracy" && known(value) ? 100 * value : 0}%`;
  text(score.lastElementChild, `${name_ === "accuracy" ? "" : `${name_} `}${figure(name_, value)}`);
  text(lossCell, loss(test.loss));
  text(sent, bytes(node.bytes_sent));
  text(received, bytes(node.bytes_received));
  text(refused, count(sum(node.refused)));
}

// One word for a node: what it does while it is there, and otherwise how it went.
export function doing(node) {
  if (!present(node)) return node.state;
  if (node.state === "suspect") return "suspect";
  if (node.error) return node.heard === null ? "no answer" : `silent for ${duration(node.heard)}`;
  if (node.reachability === "unreachable") return "unreachable";
  return node.doing ?? "alive";
}
