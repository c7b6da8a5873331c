"use strict";
const byId = (id) => document.getElementById(id);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];

// Charts: each is drawn when it comes into sight; its data follow it. Dragging must scroll on a touch screen.
const config = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "resetScale2d"]] };
const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
const draw = (plot) => {
  if (plot.data) return;
  const { data, layout } = JSON.parse(plot.nextElementSibling.textContent);
  Plotly.newPlot(plot, data, { dragmode, ...layout }, config);
  plot.on("plotly_click", ({ points: [point] }) => {
    const trial = [point.data.name, point.text, point.x].find((name) => byId(name)?.matches(".trials span"));
    if (trial) location.hash = trial;
  });
};
const sight = (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target));
const observer = new IntersectionObserver(sight, { rootMargin: "800px" });
const watch = () => { for (const plot of all(".plot")) observer.observe(plot); };
watch();
const resize = (size) => { for (const plot of all(".plot")) Plotly.relayout(plot, size); };
addEventListener("beforeprint", () => {
  all(".plot").forEach(draw);
  resize({ width: 660 });
});
addEventListener("afterprint", () => resize({ width: null, autosize: true }));

// Tables that can be sorted: a column's numbers are in its cells' titles
const key = (row, index) => {
  const cell = row.cells[index];
  const number = parseFloat(cell.title);
  return Number.isNaN(number) ? cell.textContent : number;
};
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(b, undefined, { numeric: true }));
const addButtons = (root) => {
  for (const head of all("table.sortable thead th", root)) {
    const button = root.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
  }
};
addButtons(document);
const sort = (head) => {
  const sign = head.ariaSort === "descending" ? -1 : 1;
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows].map((row) => [key(row, head.cellIndex), row]);
  // An empty cell stays at the end in both directions.
  rows.sort(([a], [b]) => (a === "") - (b === "") || sign * compare(a, b));
  body.append(...rows.map(([, row]) => row));
};
addEventListener("click", ({ target }) => {
  const head = target.closest("table.sortable thead button")?.parentElement;
  if (!head) return;
  const order = head.ariaSort === "ascending" ? "descending" : "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.ariaSort = order;
  sort(head);
});
const filter = (search) => {
  const text = search.value.toLowerCase();
  for (const row of search.closest("section").querySelector("tbody").rows) row.hidden = !row.textContent.toLowerCase().includes(text);
};
addEventListener("input", ({ target }) => { if (target.matches("section input[type=search]:not([name])")) filter(target); });

// Images and tables: a slider chooses the step.
const showStep = (slider) => {
  const frames = [...slider.closest("figure").querySelector(".frames").children];
  frames.forEach((frame, place) => { frame.hidden = place !== Number(slider.value); });
  slider.ariaValueText = frames[slider.value].querySelector(".note").textContent;
};
all(".media input").forEach(showStep);
addEventListener("input", ({ target }) => { if (target.matches(".media input")) showStep(target); });
