// Making and updating elements. What peers say only ever becomes text: there is no way to put markup in.

const SVG = "http://www.w3.org/2000/svg";
const probe = document.createElement("i");
probe.hidden = true;

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else put(element, name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Sets an attribute only when it changes; false, null and undefined take it away.
export function put(element, name, value) {
  if (value === false || value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
}

export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// One child for each item, in order; those that stay are kept, and with them focus and hover.
export function keyed(parent, items, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    if (child) old.delete(name);
    else {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

export function card(title, ...children) {
  const heading = h("h2", {}, title);
  return h("section", { class: "card", "aria-label": title }, h("div", { class: "card-head" }, heading), ...children);
}

// A few choices, one of which holds.
export function choice(label, options, value, onchange) {
  const buttons = options.map(([name, title]) =>
    h("button", { type: "button", "aria-pressed": String(name === value), onclick: () => choose(name) }, title),
  );
  function choose(name) {
    options.forEach(([other], i) => put(buttons[i], "aria-pressed", String(other === name)));
    onchange(name);
  }
  return h("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

// A colour of the style as `rgb(…)`, light or dark as the page is.
export function colour(name) {
  probe.style.color = `var(${name})`;
  if (!probe.isConnected) document.body.append(probe);
  return getComputedStyle(probe).color;
}
