"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [sentence, type, layer, heads, queries, keys, lines] =
  ["sentence", "type", "layer", "heads", "queries", "keys", "lines"].map(id => document.getElementById(id));
const output = document.querySelector("output");
const ROW = 24; // pixels of a token
let shown = null; // the query that is pointed at, null for all

const fill = (select, names) => {
  const before = select.selectedIndex;
  select.replaceChildren(...names.map(name => new Option(name)));
  select.selectedIndex = Math.min(Math.max(before, 0), names.length - 1);
};
const chosenType = () => data[sentence.selectedIndex].types[type.selectedIndex];
const chosenLayer = () => chosenType().layers[layer.selectedIndex];
const colour = (i, n) => `hsl(${Math.round(360 * i / n)} 70% 45%)`;
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const chosenHeads = () => {
  const all = chosenLayer().heads;
  return [...heads.querySelectorAll("input:checked")].map(box => {
    const head = all[Number(box.value)];
    head.bytes = head.bytes || bytes(head.weights);
    return {bytes: head.bytes, colour: colour(Number(box.value), all.length)};
  });
};

const draw = () => {
  const {queries: from, keys: to} = chosenType(), chosen = chosenHeads(), parts = [];
  for (const {bytes: weights, colour: stroke} of chosen) {
    for (let q = shown === null ? 0 : shown; q < (shown === null ? from.length : shown + 1); q++) {
      for (let k = 0; k < to.length; k++) {
        const weight = weights[q * to.length + k] / 255;
        if (weight < 0.02) continue;
        const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
        const ends = {x1: 0, y1: (q + 0.5) * ROW, x2: 128, y2: (k + 0.5) * ROW, stroke, "stroke-opacity": weight};
        for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
        parts.push(line);
      }
    }
  }
  lines.replaceChildren(...parts);
  lines.style.height = `${ROW * Math.max(from.length, to.length)}px`;
  const mean = to.map((_, k) => shown === null || !chosen.length ? 0
    : chosen.reduce((sum, head) => sum + head.bytes[shown * to.length + k], 0) / 255 / chosen.length);
  [...keys.children].forEach((item, k) => item.style.setProperty("--w", mean[k]));
  [...queries.children].forEach((item, q) => item.style.setProperty("--w", q === shown ? 0.5 : 0));
  const best = mean.indexOf(Math.max(...mean));
  output.textContent = shown === null ? "" : `${from[shown]}: ${Math.round(100 * mean[best])}% on ${to[best]}`;
};

const point = q => { shown = q; draw(); };

const showTokens = () => {
  const items = (tokens, list) => list.replaceChildren(...tokens.map(token => {
    const item = document.createElement("li");
    item.textContent = token;
    return item;
  }));
  items(chosenType().queries, queries);
  items(chosenType().keys, keys);
  [...queries.children].forEach((item, q) => {
    item.tabIndex = q ? -1 : 0;
    item.addEventListener("mouseenter", () => point(q));
    item.addEventListener("focus", () => point(q));
    item.addEventListener("blur", () => point(null));
    item.addEventListener("keydown", event => {
      const next = queries.children[q + ({ArrowDown: 1, ArrowUp: -1}[event.key] || NaN)];
      if (!next) return;
      item.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      event.preventDefault();
    });
  });
};

const showHeads = () => {
  const all = chosenLayer().heads;
  const boxes = all.map(({head, gate}, i) => {
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.value = i;
    box.disabled = gate === null;
    box.checked = gate !== null && gate > 0;
    label.style.setProperty("--colour", colour(i, all.length));
    label.append(box, ` ${head}${gate === null ? " (removed)" : gate > 0 ? "" : " (closed)"}`);
    return label;
  });
  heads.replaceChildren(heads.querySelector("legend"), ...boxes);
  draw();
};

const showLayers = () => {
  fill(layer, chosenType().layers.map(each => each.layer));
  shown = null;
  showTokens();
  showHeads();
};
const showTypes = () => { fill(type, data[sentence.selectedIndex].types.map(each => each.title)); showLayers(); };

queries.addEventListener("mouseleave", () => point(null));
heads.addEventListener("change", draw);
layer.addEventListener("change", showHeads);
type.addEventListener("change", showLayers);
sentence.addEventListener("change", showTypes);
fill(sentence, data.map(each => each.number));
showTypes();
