"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [sentence, type, several, heads, chosen, queries, keys, lines] =
  ["sentence", "type", "several", "heads", "chosen", "queries", "keys", "lines"].map(id => document.getElementById(id));
const output = document.querySelector("output");
let shown = null; // the query that is pointed at, null for all

const made = (name, properties, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const fill = (select, names) => select.replaceChildren(...names.map(name => new Option(name)));
const shownType = () => data[sentence.selectedIndex].types[type.selectedIndex];
const checked = () => [...heads.querySelectorAll(":checked")];

const thumbnail = (weights, rows, columns) => {
  const canvas = made("canvas", {width: columns, height: rows});
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  weights.forEach((weight, i) => image.data.set([56, 120, 190, weight], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
};

/* Return the mean over keys of the largest weight on the key: highest for sharp weights on many different keys. */
const reach = (weights, columns) => {
  const largest = new Uint8Array(columns);
  weights.forEach((weight, i) => { largest[i % columns] = Math.max(largest[i % columns], weight); });
  return largest.reduce((sum, weight) => sum + weight, 0) / columns;
};

const showHeads = () => {
  const {queries: from, keys: to, layers} = shownType();
  let first = null, highest = -Infinity;
  heads.replaceChildren(...layers.map(({layer, heads: all}) => {
    const row = made("div", {}, made("span", {textContent: `layer ${layer}`}));
    row.style.gridTemplateColumns = `4.2em repeat(${all.length}, minmax(1.5rem, 5rem))`;
    for (const {head, gate, weights: packed} of all) {
      const weights = Uint8Array.from(atob(packed || ""), c => c.charCodeAt(0));
      const state = gate === null ? "removed" : gate > 0 ? "" : "closed";
      const name = `layer ${layer} head ${head}`, title = state ? `${name} (${state})` : name;
      const input = made("input", {type: several.checked ? "checkbox" : "radio", name: "head", ariaLabel: title});
      Object.assign(input, {disabled: gate === null, weights, title});
      const score = gate === null ? -Infinity : reach(weights, to.length) - (gate > 0 ? 0 : 256);
      if (score > highest) [first, highest] = [input, score];
      row.append(made("label", {title, className: state}, input, thumbnail(weights, from.length, to.length), head));
    }
    return row;
  }));
  if (first) first.checked = true;
  draw();
};

const draw = () => {
  const {queries: from, keys: to} = shownType(), parts = [], inputs = checked();
  const names = inputs.map((input, i) => {
    const colour = `hsl(${(210 + 137.5 * i) % 360} 70% 50%)`, name = made("span", {textContent: input.title});
    const middle = 0.5 + (i - (inputs.length - 1) / 2) * 0.8 / Math.max(8, inputs.length); // heads do not cover others
    for (const element of [input.parentElement, name]) element.style.setProperty("--colour", colour);
    input.weights.forEach((byte, at) => {
      const weight = byte / 255, q = Math.floor(at / to.length), k = at % to.length;
      if (weight < 0.02 || (shown !== null && q !== shown)) return;
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      line.setAttribute("d", `M0 ${q + middle} C.4 ${q + middle} .6 ${k + middle} 1 ${k + middle}`);
      line.setAttribute("stroke", colour);
      line.setAttribute("stroke-width", 1 + 4 * weight);
      line.setAttribute("stroke-opacity", weight);
      parts.push(line);
    });
    return name;
  });
  const rows = Math.max(from.length, to.length);
  lines.replaceChildren(...parts);
  lines.setAttribute("viewBox", `0 0 1 ${rows}`);
  lines.style.height = `${1.75 * rows}rem`;
  chosen.replaceChildren(...(names.length ? names : ["no head chosen"]));
  const mean = to.map((_, k) => shown === null || !inputs.length ? 0
    : inputs.reduce((sum, input) => sum + input.weights[shown * to.length + k], 0) / 255 / inputs.length);
  [...keys.children].forEach((item, k) => {
    item.style.setProperty("--w", mean[k]);
    item.dataset.share = mean[k] >= 0.005 ? `${Math.round(100 * mean[k])}%` : "";
  });
  [...queries.children].forEach((item, q) => item.style.setProperty("--w", q === shown ? 0.5 : 0));
  const best = mean.indexOf(Math.max(...mean));
  output.textContent = shown === null ? "" : `${from[shown]}: ${Math.round(100 * mean[best])}% on ${to[best]}`;
};

const point = q => { shown = q; draw(); };

const showType = () => {
  const {queries: from, keys: to} = shownType();
  shown = null;
  keys.replaceChildren(...to.map(textContent => made("li", {textContent})));
  queries.replaceChildren(...from.map((textContent, q) => {
    const item = made("li", {textContent, tabIndex: q ? -1 : 0});
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
    return item;
  }));
  showHeads();
};

const showSentence = () => {
  const before = type.selectedIndex, {types} = data[sentence.selectedIndex];
  fill(type, types.map(each => each.title));
  type.selectedIndex = before < 0 ? types.length - 1 : before; // at first that of the decoder to the source
  showType();
};

queries.addEventListener("mouseleave", () => point(null));
heads.addEventListener("change", draw);
several.addEventListener("change", () => {
  checked().slice(1).forEach(input => { input.checked = several.checked; });
  heads.querySelectorAll("input").forEach(input => { input.type = several.checked ? "checkbox" : "radio"; });
  draw();
});
type.addEventListener("change", showType);
sentence.addEventListener("change", showSentence);
fill(sentence, data.map(each => each.number));
showSentence();
