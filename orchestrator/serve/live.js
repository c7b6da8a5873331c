
// The rest is for pages that hookyard serve answers. Such a page asks for itself again, and changes what is different.
const said = document.createElement("p");
said.role = "status";
said.className = "connection";
document.querySelector("nav").after(said);

// Change an element into another one, without replacing what is the same: focus, selection and scrolling stay.
const KEPT = ["open", "aria-sort", "aria-valuetext", "hidden"];
const morph = (old, fresh) => {
  if (old.matches(".plot")) return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !KEPT.includes(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !KEPT.includes(name)) old.setAttribute(name, value);
  let next = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const found = node.id ? [...old.children].find((child) => child.id === node.id) : next;
    const isSame = found && found.nodeName === node.nodeName && found.id === node.id;
    if (!isSame) {
      old.insertBefore(document.adoptNode(node), next);
      continue;
    }
    if (found !== next) old.insertBefore(found, next);
    next = found.nextSibling;
    if (found.nodeType === Node.ELEMENT_NODE) morph(found, node);
    else if (found.data !== node.data) found.data = node.data;
  }
  while (next) {
    const after = next.nextSibling;
    next.remove();
    next = after;
  }
};
const redraw = (plot) => {
  const text = plot.nextElementSibling.textContent;
  if (plot.drawn !== undefined && plot.drawn !== text && plot.data) {
    const { data, layout } = JSON.parse(text);
    Plotly.react(plot, data, { dragmode, ...layout }, config);
  }
  plot.drawn = text;
};
// Each trial has a page of its own
const addLinks = (root) => {
  for (const name of all(".trials tbody span[id]", root)) {
    const link = root.createElement("a");
    link.href = `${location.pathname}/trials/${encodeURIComponent(name.id)}`;
    link.append(...name.childNodes);
    name.append(link);
  }
};
addLinks(document);
const update = (text) => {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  addButtons(fresh);
  addLinks(fresh);
  for (const part of ["nav", "main"]) morph(document.querySelector(part), fresh.querySelector(part));
  document.title = fresh.title;
  all(".plot").forEach(redraw);
  watch();
  all("table.sortable thead th[aria-sort]").forEach(sort);
  all(".media input").forEach(showStep);
  all("section input[type=search]:not([name])").forEach(filter);
};
all(".plot").forEach(redraw);

let shown = null;
const refresh = async (url) => {
  const answer = await fetch(url);
  if (answer.status === 401) throw new Error("The server has another token: open the address that it has printed.");
  const text = await answer.text();
  if (!answer.ok) throw new Error(new DOMParser().parseFromString(text, "text/html").querySelector("main").textContent);
  if (text !== shown) update(text);
  shown = text;
};
const every = Number(document.body.dataset.everyS) * 1000;
const follow = async () => {
  const began = performance.now();
  try {
    if (!document.hidden) await refresh(location.href);
    said.textContent = "";
  } catch (error) {
    said.textContent = error instanceof TypeError ? "The server does not answer; this page may be old." : error.message;
  }
  // A page that takes long is asked for less often.
  setTimeout(follow, Math.max(every, 4 * (performance.now() - began)));
};
if (every) follow();

// The list of runs: what is typed takes effect at once
const selection = document.getElementById("selection");
if (selection) {
  const select = () => {
    const url = `/?${new URLSearchParams(new FormData(selection))}`;
    history.replaceState(null, "", url);
    refresh(url).catch(() => {});
  };
  selection.addEventListener("input", select);
}
