// What moves between nodes, and what does not: bytes, models by peer, refused messages, failed calls.

import { bars } from "./bars.js";
import { Chart, legend } from "./chart.js";
import { card, h } from "./dom.js";
import { bytes, count, sum } from "./format.js";
import { clusterColour, nameOf, nodes, store } from "./store.js";

const [OUT, IN] = ["var(--accent)", "var(--c2)"];

export function traffic(root) {
  const chart = new Chart("Bytes", { format: bytes, zero: true });
  const partners = bars("No models have moved yet.");
  const refused = bars("This node has refused no message.");
  const everywhere = bars("No node that answers has refused a message.");
  const failed = bars("No call of this node has failed.");
  root.replaceChildren(
    h(
      "div",
      { class: "two" },
      card("Bytes of models, this node", chart.element, legend([["sent", OUT], ["received", IN]])),
      card("Models by peer, this node", partners.element),
    ),
    h(
      "div",
      { class: "three" },
      card("Refused here, by reason", refused.element),
      card("Refused in the swarm, by node", everywhere.element),
      card("Failed calls of this node", failed.element),
    ),
  );

  return (what) => {
    const status = store.status;
    if (!status || (what === "tick" && store.swarm)) return;
    const curve = store.curves.get(status.id) ?? [];
    chart.draw([
      { name: "sent", colour: OUT, points: curve.map((p) => [p.round, p.bytes_sent]) },
      { name: "received", colour: IN, points: curve.map((p) => [p.round, p.bytes_received]) },
    ]);
    partners.draw(byPeer(status));
    refused.draw(rows(status.refused));
    failed.draw(rows(status.failed_calls));
    everywhere.draw(nodes().filter((node) => sum(node.refused)).map(refusals));
  };
}

function byPeer({ models_sent: sent, models_received: received }) {
  const ids = [...new Set([...Object.keys(sent), ...Object.keys(received)])];
  return ids.map((id) => ({
    key: id,
    name: nameOf(id),
    value: (sent[id] ?? 0) + (received[id] ?? 0),
    shown: `${count(sent[id] ?? 0)} out, ${count(received[id] ?? 0)} in`,
    colour: clusterColour(id),
    href: `#/node/${encodeURIComponent(id)}`,
  }));
}

function rows(table) {
  return Object.entries(table ?? {}).map(([name, value]) => ({ name, value, shown: count(value), colour: "var(--warn)" }));
}

function refusals(node) {
  const total = sum(node.refused);
  return { key: node.id, name: node.name, value: total, shown: count(total), colour: "var(--warn)", href: `#/node/${encodeURIComponent(node.id)}` };
}
