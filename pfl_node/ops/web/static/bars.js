// A list of names with a bar and a figure each, largest first.

import { h, keyed, put, text } from "./dom.js";

export function bars(nothing) {
  const list = h("ul", { class: "bars" });
  const empty = h("p", { class: "empty" }, nothing);
  const element = h("div", {}, list, empty);

  // Rows: {key, name, value, shown, colour, href}.
  function draw(rows, limit = 12) {
    const sorted = [...rows].sort((a, b) => b.value - a.value || a.name.localeCompare(b.name)).slice(0, limit);
    const most = Math.max(1e-9, ...sorted.map((row) => row.value));
    empty.hidden = sorted.length > 0;
    keyed(list, sorted, (row) => row.key ?? row.name, make, (item, row) => update(item, row, most));
  }

  return { element, draw };
}

function make(row) {
  const name = h(row.href ? "a" : "span", { class: "bar-name" });
  return h("li", {}, name, h("span", { class: "meter", "aria-hidden": "true" }, h("i")), h("b", { class: "number" }));
}

function update(item, row, most) {
  const [name, meter, figure] = item.children;
  text(name, row.name);
  if (row.href) put(name, "href", row.href);
  put(name, "title", row.name);
  meter.firstElementChild.style.width = `${(100 * row.value) / most}%`;
  meter.firstElementChild.style.background = row.colour ?? "var(--accent)";
  text(figure, row.shown);
}
