// Whether this node takes part: others reach it, models arrive, models leave; and with each peer.

import { card, h, keyed, put, text } from "./dom.js";
import { count } from "./format.js";

const MOODS = { ok: "good", waiting: "dim", warn: "warn", fail: "bad" };
const COLUMNS = ["Peer", "Reaches this node", "Reached from here", "Received", "Sent"];

export function health() {
  const checks = h("ul", { class: "checks" });
  const body = h("tbody");
  const heads = COLUMNS.map((name, i) => h("th", { class: i > 2 ? "number" : null, scope: "col" }, name));
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body);
  const peers = h("div", { class: "wide-table peers" }, table);
  const element = card("Reachable, receiving, sending", checks, peers);

  function draw(found) {
    element.hidden = !found;
    if (!found) return;
    keyed(checks, found.checks, (check) => check.name, line, updateLine);
    peers.hidden = !found.peers.length;
    keyed(body, found.peers, (peer) => peer.id, row, updateRow);
  }

  return { element, draw };
}

// The pill of the frame: the state of a node that exchanges models, or why it does not.
export function verdict(status) {
  const found = status.health;
  if (!found || found.level === "ok" || found.level === "warn") {
    return [status.state, ["training", "done"].includes(status.state) ? "good" : "warn"];
  }
  return found.level === "fail" ? [`${status.state}, but not healthy`, "bad"] : [`${status.state}, waiting`, "warn"];
}

function line() {
  return h("li", {}, h("b", { class: "level" }), h("span", { class: "what" }), h("span", { class: "why" }));
}

function updateLine(item, check) {
  const [level, what, why] = item.children;
  text(level, check.level);
  put(level, "class", `level ${MOODS[check.level] ?? ""}`);
  text(what, check.name);
  text(why, check.todo ? `${check.text}: ${check.todo}` : check.text);
}

function row() {
  return h("tr", {}, ...COLUMNS.map((_, i) => h("td", { class: i > 2 ? "number" : null })));
}

function updateRow(tr, peer) {
  const [name, reaches, reached, received, sent] = tr.children;
  text(name, peer.name);
  text(reaches, peer.reaches_me === null ? "not known" : peer.reaches_me ? (peer.relayed ? "through a relay" : "yes") : `no: ${peer.why_not}`);
  put(reaches, "class", peer.reaches_me === false ? "warn" : null);
  text(reached, peer.dialled ? (peer.dial_error ? `trying: ${peer.dial_error}` : "yes") : `no: ${peer.dial_error || peer.reachability}`);
  put(reached, "class", peer.dialled ? null : "warn");
  text(received, count(peer.received));
  text(sent, count(peer.sent));
}
