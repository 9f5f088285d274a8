// What happened, newest first, as it happens. It can be held, and kinds can be left out.

import { card, h, keyed, put, text } from "./dom.js";
import { bytes, clock, count, figure, known, nextRound } from "./format.js";
import { headline, nameOf, store } from "./store.js";

const SHOWN = 200;
const NOISY = ["sent", "received"];
const MOODS = { died: "bad", checkpoint_failed: "bad", warning: "warn", refused: "warn", failed: "warn", suspected: "warn", lost: "warn" };

const hidden = new Set(NOISY);

export function events(root) {
  let held = null;
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Kinds to show" });
  const list = h("ol", { class: "events", reversed: true });
  const empty = h("p", { class: "empty" }, "Nothing has happened yet.");
  const hold = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: toggle }, "Hold");
  const box = card("Events", chips, list, empty);
  box.firstElementChild.append(hold);
  root.replaceChildren(box);

  function toggle() {
    held = held ? null : [...store.events];
    put(hold, "aria-pressed", String(Boolean(held)));
    text(hold, held ? "Go on" : "Hold");
    draw();
  }

  function draw() {
    const all = held ?? store.events;
    const counts = new Map();
    for (const { kind } of all) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    keyed(chips, [...counts].sort(), ([kind]) => kind, ([kind]) => chip(kind, draw), tick);
    const shown = all.filter((event) => !hidden.has(event.kind)).slice(-SHOWN).reverse();
    empty.hidden = shown.length > 0;
    keyed(list, shown, (event) => event.number, row, () => {});
  }

  return (what) => {
    if (what !== "swarm" && !(held && what === "tick")) draw();
  };
}

function chip(kind, draw) {
  const press = () => {
    if (!hidden.delete(kind)) hidden.add(kind);
    draw();
  };
  return h("button", { type: "button", class: "chip", onclick: press }, h("span", {}, kind.replaceAll("_", " ")), h("b"));
}

function tick(button, [kind, n]) {
  put(button, "aria-pressed", String(!hidden.has(kind)));
  text(button.lastElementChild, count(n));
}

function row({ time, kind, data }) {
  const badge = h("span", { class: `badge ${MOODS[kind] ?? ""}`.trim() }, kind.replaceAll("_", " "));
  return h("li", {}, h("time", {}, clock(time)), badge, h("span", { class: "what" }, sentence(kind, data)));
}

function sentence(kind, data) {
  const peer = data.name ?? (data.peer ? nameOf(data.peer) : "");
  switch (kind) {
    case "sent":
      return `${bytes(data.bytes)} to ${peer} (${data.call})`;
    case "received":
      return `${bytes(data.bytes)} from ${peer} (${data.call})`;
    case "refused":
      return `${data.call} of ${peer || "somebody"}: ${data.reason}`;
    case "failed":
      return `${data.call} to ${peer}: ${data.reason}, ${data.text}`;
    case "round":
      return [`round ${count(data.round + 1)}`, ...figures(data)].join(", ");
    case "changed":
      return `${peer} is ${data.state} at ${data.address}, round ${count(data.round)}`;
    case "started":
      return `begins in round ${count(data.round)} with ${count(data.samples)} samples`;
    case "waiting":
      return nextRound(data);
    case "told":
      return `${data.what}: ${rest(data)}`;
    case "joined":
    case "suspected":
    case "died":
    case "left":
      return `${peer} at ${data.address}, round ${count(data.round)}`;
    case "warning":
      return data.error ? `${data.text}: ${data.error}` : data.text;
    case "opened":
      return `${data.name} listens on ${data.address}, version ${data.version}`;
    case "checkpoint":
      return `round ${count(data.round)}, in ${data.seconds} s`;
    case "lost":
      return `${count(data.count)} events came too fast for this page`;
    default:
      return JSON.stringify(data).slice(0, 300);
  }
}

function rest(data) {
  const { what, ...others } = data;
  return JSON.stringify(others, (key, value) => (key === "ids" && Array.isArray(value) ? value.map(nameOf) : value)).slice(0, 300);
}

function figures(data) {
  const found = [];
  const name = headline();
  if (known(data[`test_${name}`])) found.push(`test ${name} ${figure(name, data[`test_${name}`])}`);
  if (known(data[`val_${name}`])) found.push(`validation ${figure(name, data[`val_${name}`])}`);
  if (Array.isArray(data.from)) found.push(`merged ${data.from.length ? data.from.map(nameOf).join(", ") : "nobody"}`);
  if (known(data.head)) found.push(`head ${data.head}`);
  return found;
}
