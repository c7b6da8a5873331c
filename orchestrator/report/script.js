"use strict";
const byId = (id) => document.getElementById(id);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const kept = (value) => {
  try {
    if (value !== undefined) localStorage.setItem("hookyard-theme", value);
    return localStorage.getItem("hookyard-theme");
  } catch { return null; } // a browser may keep nothing for files
};

// Theme
const theme = byId("theme");
const show = (name) => { document.documentElement.dataset.theme = theme.value = name; };
show(["light", "dark"].includes(kept()) ? kept() : "system");
theme.parentElement.hidden = false;
theme.onchange = () => { show(theme.value); kept(theme.value); };

// The tip beside the pointer
const tip = byId("tip");
const tell = (text, left, top) => {
  tip.textContent = text;
  tip.hidden = !text;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(4, Math.min(left + 14, room))}px`;
  tip.style.top = `${top + 14 + tip.offsetHeight > innerHeight ? top - tip.offsetHeight - 10 : top + 14}px`;
};

// Lines: the values at the place that is pointed at, read from the chart's own table
const rowsOf = (plot) => {
  if (plot.rows) return plot.rows;
  const table = plot.closest("figure").querySelector(".data table");
  const heads = all("thead th", table).map((head) => head.dataset.name || head.textContent);
  plot.heads = heads;
  plot.rows = [...table.tBodies[0].rows].map((row) => [...row.cells]).map((cells) => ({ at: parseFloat(cells[0].title), cells }));
  plot.rows.sort((a, b) => a.at - b.at);
  return plot.rows;
};
const values = (plot, at) => {
  const rows = rowsOf(plot);
  const nearest = (column) => rows.reduce((best, row) =>
    row.cells[column].textContent && (!best || Math.abs(row.at - at) < Math.abs(best.at - at)) ? row : best, null);
  const row = nearest(0);
  const lines = plot.heads.slice(1).map((head, index) => {
    const own = nearest(index + 1);
    if (!own) return null;
    const place = own.at === row.at ? "" : ` (at ${own.cells[0].textContent})`;
    return `${head}: ${own.cells[index + 1].textContent}${place}`;
  });
  return { at: row.at, text: [`${plot.heads[0]} ${row.cells[0].textContent}`, ...lines.filter(Boolean)].join("\n") };
};
const cross = document.createElement("div");
cross.className = "cross";
const point = (plot, at, left, top) => {
  const [low, high] = [Number(plot.dataset.low), Number(plot.dataset.high)];
  const area = plot.firstElementChild;
  const found = values(plot, at);
  area.append(cross);
  cross.style.left = `${100 * (found.at - low) / (high - low)}%`;
  const box = area.getBoundingClientRect();
  tell(found.text, left ?? box.left + box.width * (found.at - low) / (high - low), top ?? box.top);
  plot.at = found.at;
};
const leave = () => { cross.remove(); tip.hidden = true; };
for (const plot of all(".plot[data-low]")) {
  const area = plot.firstElementChild;
  area.onpointermove = (event) => {
    const box = area.getBoundingClientRect();
    const [low, high] = [Number(plot.dataset.low), Number(plot.dataset.high)];
    point(plot, low + (high - low) * (event.clientX - box.left) / box.width, event.clientX, event.clientY);
  };
  area.onpointerleave = leave;
  plot.onblur = leave;
  plot.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const places = rowsOf(plot).map((row) => row.at);
    const now = plot.at === undefined ? -1 : places.indexOf(plot.at);
    point(plot, places[Math.max(0, Math.min(places.length - 1, now + step))]);
  };
}

// Heat maps: what a cell stands for
const buffer = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const integers = (text, count) => {
  const bytes = buffer(text);
  return new { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[bytes.byteLength / count](bytes);
};
const quantity = (value, unit) => {
  if (unit === "s") return value < 1 ? `${(value * 1000).toPrecision(4)} ms` : `${value.toPrecision(4)} s`;
  if (unit === "bytes") return `${(value / 2 ** 20).toPrecision(4)} MiB`;
  return `${value.toPrecision(4)} ${unit}`;
};
for (const image of all(".heat")) {
  const { values, rows, columns, width, height, row, column, unit } = image.dataset;
  let cells = null;
  image.onpointermove = (event) => {
    cells ??= { values: new Float32Array(buffer(values)), rows: integers(rows, width * height), columns: integers(columns, width * height) };
    const box = image.getBoundingClientRect();
    const x = Math.min(width - 1, Math.max(0, Math.floor(width * (event.clientX - box.left) / box.width)));
    const y = Math.min(height - 1, Math.max(0, Math.floor(height * (event.clientY - box.top) / box.height)));
    const place = y * width + x;
    const text = Number.isNaN(cells.values[place]) ? "" : `${row} ${cells.rows[place]}, ${column} ${cells.columns[place]}: ${quantity(cells.values[place], unit)}`;
    tell(text, event.clientX, event.clientY);
  };
  image.onpointerleave = leave;
}

// Tables that can be sorted: a column's numbers are in its cells' titles
const key = (row, index) => {
  const cell = row.cells[index];
  const number = parseFloat(cell.title);
  return Number.isNaN(number) ? cell.textContent : number;
};
const compare = (a, b) => {
  if (a === "" || b === "") return (a === "") - (b === "");
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
};
for (const head of all("table.sortable thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.onclick = () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, head.cellIndex), row]);
    // An empty cell stays at the end, whichever way.
    rows.sort(([a], [b]) => (a === "" || b === "" ? compare(a, b) : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  };
}

// Tables with a choice of rows and columns
all("table.choosable").forEach((table, order) => {
  table.id ||= `table-${order}`;
  const tools = document.createElement("div");
  tools.className = "tools";
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "filter rows";
  search.ariaLabel = "Only rows with this text";
  search.oninput = () => {
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase());
  };
  const hidden = document.createElement("style");
  const boxes = document.createElement("details");
  boxes.innerHTML = "<summary>Columns</summary><fieldset aria-label='Columns'></fieldset>";
  const heads = [...table.tHead.rows[0].cells];
  const update = () => {
    const off = all("input", boxes).filter((box) => !box.checked).map((box) => `#${table.id} tr > :nth-child(${box.value})`);
    hidden.textContent = off.length ? `${off.join(",")} { display: none; }` : "";
  };
  heads.forEach((head, index) => {
    if (!index) return;
    const label = document.createElement("label");
    const box = document.createElement("input");
    Object.assign(box, { type: "checkbox", value: index + 1, checked: head.dataset.aside === undefined, onchange: update });
    label.append(box, ` ${head.textContent}`);
    boxes.lastElementChild.append(label);
  });
  tools.append(search, boxes, "Click a heading to sort, or a row to highlight its trial.");
  table.closest(".scroll").before(tools);
  document.head.append(hidden);
  update();
});

// A trial that is picked stands out in every view
const picked = byId("picked");
const rule = document.createElement("style");
document.head.append(rule);
const pick = (trial) => {
  picked.hidden = !trial;
  rule.textContent = trial
    ? `svg [data-trial]{opacity:.12} svg [data-trial="${CSS.escape(trial)}"]{opacity:1} svg [data-trial="${CSS.escape(trial)}"] .line,` +
      `svg .through[data-trial="${CSS.escape(trial)}"]{stroke-width:4} tr[data-trial="${CSS.escape(trial)}"]{background:var(--raised);outline:2px solid var(--accent)}`
    : "";
  byId("picked-name").textContent = trial;
  byId("picked-name").href = `#${trial}`;
};
byId("unpick").onclick = () => pick("");
addEventListener("keydown", (event) => { if (event.key === "Escape") pick(""); });
addEventListener("focusin", (event) => {
  const own = event.target.closest("tr[data-trial]");
  if (own && event.target.matches("a:focus-visible")) pick(own.dataset.trial);
});
addEventListener("click", (event) => {
  const own = event.target.closest("[data-trial]");
  if (own && !event.target.closest("a, button, summary")) pick(own.dataset.trial);
});

// A link to something folded opens it
const unfold = () => {
  const target = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
  for (let outer = target; outer; outer = outer.parentElement) if (outer.tagName === "DETAILS") outer.open = true;
};
addEventListener("hashchange", unfold);
unfold();
