// One node, this one or another: its figures, its curves, whom it learns with, what went wrong.

import { bars } from "./bars.js";
import { Chart, legend } from "./chart.js";
import { card, h, keyed, text } from "./dom.js";
import { bytes, count, duration, loss, nextRound, NONE, sum } from "./format.js";
import { doing, score, SHARE } from "./overview.js";
import { clusterColour, headline, nameOf, store, titled } from "./store.js";
import { tiles } from "./tiles.js";

const [TEST, VAL] = ["var(--accent)", "var(--c2)"];

export function node(root, id) {
  const named = () => headline(store.swarm?.byId.get(id));
  let name = named();
  let draw = view(root, id, name);
  return (what) => {
    if (named() !== name) {
      name = named();
      draw = view(root, id, name);
    }
    draw(what);
  };
}

function view(root, id, name) {
  const title = h("h2", { class: "page-title" });
  const figures = tiles();
  const shown = name === "loss" ? "accuracy" : name;
  const scores = new Chart(titled(shown), shown === "accuracy" ? SHARE : { format: loss, tick: String });
  const losses = new Chart("Loss", { format: loss, tick: String, low: 0 });
  const partners = bars("It has merged no other model yet.");
  const refused = bars("It has refused no message.");
  const facts = h("dl", { class: "facts" });
  const missing = h("p", { class: "empty" });
  const names = () => legend([["test", TEST], ["validation", VAL]]);
  const body = h(
    "div",
    {},
    figures.element,
    h("div", { class: "two" }, card(`${titled(shown)} over rounds`, scores.element, names()), card("Loss over rounds", losses.element, names())),
    h("div", { class: "three" }, card("Learns with, lately", partners.element), card("Refused and failed", refused.element), card("About", facts)),
  );
  root.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← all nodes")), title, missing, body);

  return (what) => {
    if (what === "tick" || !store.swarm) return;
    const found = store.swarm.byId.get(id);
    body.hidden = !found;
    missing.hidden = Boolean(found);
    text(missing, `This node knows of no member ${id.slice(0, 64)}. It may have left long ago.`);
    text(title, found ? found.name : "Nobody");
    if (!found) return;
    figures.draw(tilesOf(found));
    scores.draw(lines(id, shown));
    losses.draw(lines(id, "loss"));
    partners.draw(partnersOf(id));
    refused.draw([...troubles(found.refused, "refused"), ...troubles(found.failed_calls, "failed")]);
    keyed(facts, factsOf(found), ([name]) => name, pair, (item, [, value]) => text(item.lastElementChild, value));
  };
}

function tilesOf(found) {
  const { val = {}, test = {} } = found.measured ?? {};
  return [
    ["State", doing(found), found.uptime === undefined ? "it has not answered" : `up for ${duration(found.uptime)}`, found.error ? "warn" : ""],
    ["Round", count(found.round), found.rounds ? `of ${count(found.rounds)}` : "without an end"],
    ...score(found, test, val),
    ["Test loss", loss(test.loss), `validation ${loss(val.loss)}`],
    ["Sent", bytes(found.bytes_sent), `received ${bytes(found.bytes_received)}`],
    ["Refused", count(sum(found.refused)), `${count(sum(found.failed_calls))} calls failed`, sum(found.refused) ? "warn" : ""],
  ];
}

function lines(id, what) {
  const points = (split) => (store.curves.get(id) ?? []).map((p) => [p.round, p[`${split}_${what}`]]);
  return [
    { name: "validation", colour: VAL, points: points("val") },
    { name: "test", colour: TEST, wide: true, points: points("test") },
  ];
}

function partnersOf(id) {
  const total = store.swarm.ties.total[id] ?? {};
  return Object.entries(store.swarm.ties.lately[id] ?? {}).map(([peer, weight]) => ({
    key: peer,
    name: nameOf(peer),
    value: weight,
    shown: `${count(total[peer] ?? 0)} in all`,
    colour: clusterColour(peer),
    href: `#/node/${encodeURIComponent(peer)}`,
  }));
}

function troubles(table, word) {
  return Object.entries(table ?? {}).map(([name, value]) => ({ name: `${word}: ${name}`, value, shown: count(value), colour: "var(--warn)" }));
}

function waitsFor(found) {
  const next = nextRound(found.next_round);
  if (next) return next;
  if (!found.waiting_for?.length) return "nobody";
  const left = typeof found.waiting_left === "number" ? `, at most ${duration(found.waiting_left)}` : "";
  return found.waiting_for.map(nameOf).join(", ") + left;
}

function factsOf(found) {
  return [
    ["Id", found.id],
    ["Address", found.address || NONE],
    ["Policy", found.policy || NONE],
    ["Task", found.task || NONE],
    ["Samples", count(found.samples)],
    ["Head", found.head === null || found.head === undefined ? NONE : String(found.head)],
    ["Neighbours chosen", found.neighbours ? found.neighbours.map(nameOf).join(", ") || "none" : NONE],
    ["Waits for", waitsFor(found)],
    ["Models waiting", count(found.models_waiting)],
    ["Version", found.version || NONE],
    ["Last answer", found.me ? "this node" : found.error ? found.error : found.heard === null ? "none yet" : `${duration(found.heard)} ago`],
  ];
}

function pair([name]) {
  return h("div", {}, h("dt", {}, name), h("dd"));
}
