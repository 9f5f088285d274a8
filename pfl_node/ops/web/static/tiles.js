// A row of figures, each with its name above and a note below.

import { h, keyed, put, text } from "./dom.js";

export function tiles() {
  const element = h("dl", { class: "tiles" });
  // Facts: [name, figure, note, how it is meant].
  return { element, draw: (facts) => keyed(element, facts, ([name]) => name, make, update) };
}

function make([name]) {
  return h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: "figure" }), h("dd", { class: "note" }));
}

function update(tile, [, figure, note, mood]) {
  const [, value, below] = tile.children;
  text(value, figure);
  text(below, note);
  put(tile, "class", mood ? `tile ${mood}` : "tile");
}
