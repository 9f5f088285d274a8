// What is known so far, and who wants to hear of news: the live stream of /api/live, and the curves of /api/history.

import { known } from "./format.js";

const KEPT = 600; // events
const POINTS = 800; // of one curve

export const store = {
  status: null,
  swarm: null,
  events: [], // newest last
  curves: new Map(), // by node: points
  heard: 0, // when, on the page's clock
  began: performance.now(),
};

const listeners = new Set();

export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(what) {
  for (const listener of [...listeners]) listener(what);
}

export function begin() {
  const source = new EventSource("/api/live");
  source.addEventListener("open", load);
  source.addEventListener("tick", (message) => {
    const { status, events } = JSON.parse(message.data);
    store.status = status;
    addEvents(events);
    heard("tick");
  });
  source.addEventListener("swarm", (message) => {
    store.swarm = JSON.parse(message.data);
    store.swarm.byId = new Map(store.swarm.nodes.map((node) => [node.id, node]));
    store.swarm.group = groups(store.swarm.clusters);
    extend();
    heard("swarm");
  });
  source.addEventListener("error", () => {
    tell("silent");
    if (source.readyState === EventSource.CLOSED) setTimeout(again, 2000);
  });
}

// A browser gives up when the answer is not a stream: the node restarts, or it wants the token again.
async function again() {
  try {
    const answer = await fetch("/api/status");
    if (answer.status === 401) location.assign("/login");
    else begin();
  } catch {
    setTimeout(again, 2000);
  }
}

async function load() {
  try {
    const [history, events] = await Promise.all(["/api/history", "/api/events?last=300"].map(json));
    for (const [id, points] of Object.entries(history.nodes)) store.curves.set(id, points);
    store.events = [];
    addEvents(events.events);
    tell("history");
  } catch {
    tell("silent");
  }
}

async function json(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

function heard(what) {
  store.heard = performance.now();
  tell(what);
}

function addEvents(events) {
  const last = store.events.at(-1)?.number ?? 0;
  store.events.push(...events.filter((event) => event.number > last));
  store.events.splice(0, Math.max(0, store.events.length - KEPT));
}

function groups(clusters) {
  const found = new Map();
  clusters.groups.forEach((ids, i) => ids.forEach((id) => found.set(id, i)));
  return found;
}

// The newest figures of every node are one more point of its curve.
function extend() {
  for (const node of store.swarm.nodes) {
    const { val = {}, test = {} } = node.measured ?? {};
    const round = node.round - 1;
    if (!known(val.loss ?? test.loss) || round < 0) continue;
    const curve = store.curves.get(node.id) ?? [];
    while (curve.length && curve.at(-1).round >= round) curve.pop();
    curve.push({
      round,
      ...prefixed("val_", val),
      ...prefixed("test_", test),
      bytes_sent: node.bytes_sent,
      bytes_received: node.bytes_received,
    });
    if (curve.length > POINTS) store.curves.set(node.id, curve.filter((_, i) => i % 2 === 0 || i === curve.length - 1));
    else store.curves.set(node.id, curve);
  }
}

function prefixed(prefix, figures) {
  return Object.fromEntries(Object.entries(figures).map(([name, value]) => [prefix + name, value]));
}

// -- questions the views share --------------------------------------------------------------------------------

// The name of the figure by which the task compares models.
export function headline(node) {
  return (node ?? store.swarm?.nodes?.find((n) => n.me))?.headline?.name ?? "accuracy";
}

export function titled(name) {
  return name[0].toUpperCase() + name.slice(1);
}

export function nodes() {
  return (store.swarm?.nodes ?? []).filter((node) => node.role === "node");
}

export function present(node) {
  return node.state === "alive" || node.state === "suspect";
}

export function nameOf(id) {
  return store.swarm?.byId.get(id)?.name ?? (id ? id.slice(0, 8) : "?");
}

export function clusterColour(id) {
  const group = store.swarm?.group.get(id);
  return group === undefined ? "var(--lone)" : `var(--c${group % 8})`;
}

// Nodes in the order of their clusters, so that those who learn together stand together.
export function ordered() {
  const group = store.swarm?.group ?? new Map();
  return nodes()
    .filter(present)
    .sort((a, b) => (group.get(a.id) ?? 99) - (group.get(b.id) ?? 99) || a.name.localeCompare(b.name));
}
