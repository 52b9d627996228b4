"use strict";
// Grids of heads: hover or focus shows a head in the line below; the arrow keys move.
for (const figure of document.querySelectorAll("figure.panel")) {
  const output = figure.querySelector("output");
  for (const table of figure.querySelectorAll(".grid table")) {
    const rows = [...table.tBodies[0].rows].map(row => [...row.cells].filter(cell => cell.dataset.label));
    const show = event => { if (event.target.dataset.label) output.textContent = event.target.dataset.label; };
    rows.flat().forEach((cell, i) => { cell.tabIndex = i ? -1 : 0; });
    table.addEventListener("mouseover", show);
    table.addEventListener("focusin", show);
    table.addEventListener("keydown", event => {
      const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
      const y = rows.findIndex(row => row.includes(event.target));
      if (!step || y < 0) return;
      const next = (rows[y + step[0]] || [])[rows[y].indexOf(event.target) + step[1]];
      if (next) {
        event.target.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
      event.preventDefault();
    });
  }
}
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
// The Hard Concrete distribution (Louizos et al. 2018): a binary concrete variable, stretched and clipped.
if (document.getElementById("distribution")) {
  const names = ["log-alpha", "temperature", "low", "high"];
  const get = id => document.getElementById(id);
  const sigmoid = x => 1 / (1 + Math.exp(-x)), logit = x => Math.log(x / (1 - x));
  const draw = () => {
    const [alpha, beta, low, high] = names.map(name => Number(get(name).value));
    names.forEach(name => { get(`${name}-value`).textContent = Number(Number(get(name).value).toPrecision(3)); });
    const cumulative = gate => sigmoid(beta * logit((gate - low) / (high - low)) - alpha);
    const p0 = cumulative(0), p1 = 1 - cumulative(1);
    const density = Array.from({length: 199}, (_, i) => {
      const gate = (i + 1) / 200, step = 1e-4;
      return [gate, (cumulative(gate + step) - cumulative(gate - step)) / (2 * step)];
    });
    const top = Math.max(1, Math.ceil(Math.max(...density.map(point => point[1]))));
    const x = gate => 40 + 360 * gate, y = share => 210 - 200 * share;
    get("density-line").setAttribute("d", "M" + density.map(([g, d]) => `${x(g).toFixed(1)},${y(d / top).toFixed(1)}`).join("L"));
    get("density-top").textContent = top;
    for (const [id, gate, mass] of [["mass-0", 0, p0], ["mass-1", 1, p1]]) {
      for (const [name, value] of Object.entries({x1: x(gate), x2: x(gate), y1: y(0), y2: y(mass)})) get(id).setAttribute(name, value);
    }
    const evaluation = Math.min(1, Math.max(0, sigmoid(alpha) * (high - low) + low));
    for (const [id, value] of Object.entries({p0, p: 1 - p0 - p1, p1, evaluation})) get(id).textContent = value.toFixed(3);
  };
  names.forEach(name => get(name).addEventListener("input", draw));
  draw();
}
