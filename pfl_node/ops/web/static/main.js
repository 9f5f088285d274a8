// The frame: which view is shown, what the node is called, whether it answers, light or dark.

import { h, put, text } from "./dom.js";
import { clock, duration } from "./format.js";
import { events } from "./events.js";
import { verdict } from "./health.js";
import { node } from "./node.js";
import { overview } from "./overview.js";
import { begin, listen, store } from "./store.js";
import { swarm } from "./swarm.js";
import { traffic } from "./traffic.js";

const SILENT = 4; // seconds without a word
const THEMES = ["auto", "light", "dark"];
const VIEWS = { "": overview, swarm, traffic, events, node };

const main = document.getElementById("main");
const find = (id) => document.getElementById(id);
let draw = () => {};

// -- views ----------------------------------------------------------------------------------------------------

function route() {
  if (location.hash && !location.hash.startsWith("#/")) return; // the link that skips to the content
  const [, name = "", id = ""] = location.hash.split("/");
  const view = VIEWS[name] ?? overview;
  const root = h("div", { class: "view" });
  main.replaceChildren(root);
  draw = view(root, decoded(id));
  if (store.status || store.swarm) draw("shown");
  for (const link of document.querySelectorAll(".tabs a")) {
    put(link, "aria-current", link.getAttribute("href") === `#/${name}` ? "page" : null);
  }
  window.scrollTo(0, 0);
}

function decoded(id) {
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

// -- the frame ------------------------------------------------------------------------------------------------

function frame() {
  const { status } = store;
  if (!status) return;
  text(find("name"), status.name);
  text(find("about"), `${status.policy} on ${status.task}, run ${status.run}, ${status.address}`);
  const state = find("state");
  state.hidden = false;
  const [words, mood] = verdict(status);
  text(state, words);
  put(state, "class", `pill ${mood}`);
  put(state, "title", status.health?.reason || null);
  document.title = `${status.name}: round ${status.round}, ${status.state}`;
}

function pulse() {
  const heard = store.heard || store.began;
  const silence = (performance.now() - heard) / 1000;
  const lost = silence > SILENT;
  const live = find("live");
  put(live, "class", lost ? "live off" : store.heard ? "live on" : "live");
  text(live, lost ? "no answer" : store.heard ? "live" : "connecting");
  const alarm = find("alarm");
  alarm.hidden = !lost;
  if (!lost) return;
  const since = clock((Date.now() - 1000 * silence) / 1000);
  const seen = store.heard ? ` What is shown is from ${since}.` : "";
  text(alarm, `The node does not answer since ${duration(silence)}.${seen}`);
}

// -- light or dark --------------------------------------------------------------------------------------------

function theme(name) {
  put(document.documentElement, "data-theme", name === "auto" ? null : name);
  const button = find("theme");
  text(button, { auto: "◐ auto", light: "○ light", dark: "● dark" }[name]);
  put(button, "aria-label", `Theme: ${name}. Change it`);
  put(button, "title", "Light, dark, or as the system has it");
  try {
    localStorage.setItem("theme", name);
  } catch {
    // a browser that keeps nothing shows the page all the same
  }
  draw("theme");
}

function remembered() {
  try {
    return THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto";
  } catch {
    return "auto";
  }
}

let current = remembered();
theme(current);
find("theme").addEventListener("click", () => {
  current = THEMES[(THEMES.indexOf(current) + 1) % THEMES.length];
  theme(current);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw("theme"));
window.addEventListener("hashchange", route);
listen((what) => {
  frame();
  pulse();
  if (what !== "silent") draw(what);
});
setInterval(pulse, 1000);
route();
begin();
