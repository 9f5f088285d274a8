// Who learns with whom: the graph, the heatmap, and the clusters that follow from it.

import { card, choice, h, keyed, text } from "./dom.js";
import { figure, known, plural } from "./format.js";
import { Graph } from "./graph.js";
import { Heatmap } from "./heatmap.js";
import { clusterColour, headline, nameOf, ordered, store } from "./store.js";
import { doing } from "./overview.js";

const WORDS = { lately: "(weight of late rounds)", total: "models" };

export function swarm(root) {
  const [graph, heat] = [new Graph(), new Heatmap()];
  let span = "lately";
  const pick = choice("Time", [["lately", "lately"], ["total", "since the start"]], span, (name) => {
    span = name;
    draw();
  });
  const left = card("Who learns with whom", graph.element, h("p", { class: "dim" }, "The nearer and the thicker, the more. A node is a link to its own view."));
  left.firstElementChild.append(pick);
  const right = card("Who learned from whom", heat.element, heat.foot);
  const groups = h("ul", { class: "clusters" });
  const note = h("p", { class: "dim" });
  const empty = h("p", { class: "empty" }, "No models have been merged yet.");
  const pictures = h("div", { class: "two" }, left, right);
  root.replaceChildren(empty, pictures, card("Clusters as found", note, groups));

  function draw() {
    if (!store.swarm) return;
    const drawn = ordered().map((node) => ({
      id: node.id,
      name: node.name,
      me: node.me,
      colour: clusterColour(node.id),
      label: `${node.name}, ${doing(node)}, ${headline(node)} ${figure(headline(node), node.measured?.test?.[headline(node)])}`,
    }));
    const ties = store.swarm.ties[span];
    empty.hidden = Object.values(ties).some((row) => Object.keys(row).length > 0);
    graph.draw(drawn, ties);
    heat.draw(drawn, ties, WORDS[span]);
    text(note, words(store.swarm.clusters));
    keyed(groups, store.swarm.clusters.groups, (ids) => ids[0], group, describe);
  }

  return (what) => {
    if (what !== "tick") draw();
  };
}

function words({ by, groups, separation }) {
  if (by === "heads") return "Nodes that chose the same head of the model are one cluster.";
  if (!groups.length) return "No clusters yet: everybody learns with everybody about alike.";
  const share = `${Math.round(100 * separation)} %`;
  return `Found from who learns with whom in the last rounds. Separation ${share}: 0 % is as by chance, at 100 % nothing goes between clusters.`;
}

function group() {
  return h("li", {}, h("i", { class: "dot" }), h("b"), h("span", { class: "figure-small" }), h("span", { class: "dim names" }));
}

function describe(item, ids) {
  const [mark, title, shown, names] = item.children;
  mark.style.background = clusterColour(ids[0]);
  text(title, plural(ids.length, "node", "nodes"));
  const score = headline(store.swarm.byId.get(ids[0]));
  const values = ids.map((id) => store.swarm.byId.get(id)?.measured?.test?.[score]).filter(known);
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  text(shown, values.length ? `mean ${score} ${figure(score, mean)}` : "");
  text(names, ids.map(nameOf).sort().join(", "));
}
