// The map and its list: the same clusters in both, worst first; keys + − 0, arrows, l.
import { onKey } from "../lib/keys.js";
import { duration } from "../lib/times.js";
import { FleetStore, STATES } from "../lib/fleet_store.js";
import { Live } from "../lib/live.js";
import { showLiveState } from "../lib/live_state.js";
import { MapView } from "../lib/map_view.js";
import { markElement, readColours } from "../lib/marks.js";

const page = document.getElementById("map"), canvas = document.getElementById("map-canvas"), tip = document.getElementById("map-tip"), rows = document.getElementById("map-rows");
const words = document.getElementById("map-words").dataset;
const number = new Intl.NumberFormat(document.documentElement.lang || "en");
const fill = (text, ...values) => values.reduce((line, value) => line.replace("%s", value), text);
const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const stateWords = (state, n) => fill(words[`n${STATES[state][0].toUpperCase()}${STATES[state].slice(1)}`], number.format(n));
const ROWS = 60;

const store = new FleetStore();
const view = new MapView(canvas, store);
view.setColours(readColours());
let link = null;

const label = (cell) => (cell.worst ? fill(words.of, number.format(cell.counts[cell.worst]), number.format(cell.rows.length)) : number.format(cell.rows.length));

// What a cluster is called: its region when it is one, else its area.
function nameOf(cell) {
  const regions = new Set(cell.rows.map((row) => store.region[row]));
  if (cell.rows.length === 1) return store.layout.sites.code[cell.rows[0]];
  if (regions.size === 1) return store.layout.regions[[...regions][0]].name;
  const areas = [...new Set([...regions].map((r) => store.layout.regions[r].area))].map((a) => store.layout.areas[a].name);
  return areas.length === 1 ? areas[0] : fill(words.more, areas[0], areas.length - 1);
}
function lineOf(cell) {
  if (cell.rows.length === 1) {
    const row = cell.rows[0], since = store.since[row];
    const region = store.layout.regions[store.region[row]].name;
    return since === since && store.seen[row] && link ? `${region} · ${fill(words.since, duration(link.now() - since))}` : region;
  }
  const bad = [2, 3, 1, 4].filter((state) => cell.counts[state]).map((state) => stateWords(state, cell.counts[state]));
  return [fill(words.sites, number.format(cell.rows.length)), ...bad].join(" · ");
}
const siteUrl = (row) => page.dataset.siteUrl + encodeURIComponent(store.layout.sites.code[row]);

let drawing = 0;
function redraw() { if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; view.cluster(label); view.draw(); listSoon(); }); }

// The list follows the view a moment later, and keeps the focused row.
let listing = 0;
function listSoon() { clearTimeout(listing); listing = setTimeout(showList, 200); }
function showList() {
  const shown = view.clusters.slice(0, ROWS);
  const focused = [...rows.children].findIndex((item) => item.contains(document.activeElement));
  rows.replaceChildren(...shown.map((cell) => {
    const item = document.createElement("li");
    const one = cell.rows.length === 1;
    const act = document.createElement(one ? "a" : "button");
    if (one) act.href = siteUrl(cell.rows[0]);
    else { act.type = "button"; act.addEventListener("click", () => zoomTo(cell)); }
    act.addEventListener("mouseenter", () => { view.over = cell; view.draw(); });
    act.addEventListener("focus", () => { view.over = cell; view.draw(); });
    const name = Object.assign(document.createElement("span"), { className: "name", textContent: nameOf(cell) });
    const count = Object.assign(document.createElement("span"), { className: "num dim", textContent: one ? "" : number.format(cell.rows.length) });
    const sub = Object.assign(document.createElement("span"), { className: "detail", textContent: lineOf(cell) });
    act.append(markElement(STATES[cell.worst], STATES[cell.worst]), name, count, sub);
    item.append(act);
    return item;
  }));
  if (focused >= 0) (rows.children[Math.min(focused, rows.children.length - 1)]?.firstChild ?? rows).focus({ preventScroll: true });
  document.getElementById("map-none").hidden = shown.length > 0;
  const total = view.inView.reduce((sum, n) => sum + n, 0);
  put(document.getElementById("map-total"), total === 1 ? words.one : fill(words.sites, number.format(total)));
  for (const chip of document.querySelectorAll("[data-filter]")) put(chip.querySelector(".count"), number.format(view.inView[STATES.indexOf(chip.dataset.filter)]));
  const all = store.summary().total;
  put(document.getElementById("map-reporting"), fill(words.reporting, number.format(all.reporting), number.format(all.sites)));
}

function zoomTo(cell) { view.over = null; tip.hidden = true; view.fit(cell.rows); redraw(); canvas.focus({ preventScroll: true }); }

function showTip(cell) {
  tip.hidden = !cell;
  if (!cell) return;
  tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: nameOf(cell) }), Object.assign(document.createElement("span"), { textContent: lineOf(cell) }));
  const x = Math.min(cell.x + 16, view.width - tip.offsetWidth - 8), y = Math.min(cell.y + 14, view.height - tip.offsetHeight - 8);
  tip.style.transform = `translate(${Math.max(4, Math.round(x))}px, ${Math.max(4, Math.round(y))}px)`;
}

let drag = null;
canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, y: event.clientY, moved: false }; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener("pointermove", (event) => {
  if (drag) {
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 5) return;
    drag = { x: event.clientX, y: event.clientY, moved: true };
    view.pan(dx, dy);
    showTip(null);
    redraw();
    return;
  }
  const over = view.at(event.offsetX, event.offsetY);
  if (over === view.over) return;
  view.over = over;
  canvas.toggleAttribute("data-over", Boolean(over));
  view.draw();
  showTip(over);
});
canvas.addEventListener("pointerup", (event) => {
  const moved = drag?.moved;
  drag = null;
  if (moved) return;
  const cell = view.at(event.offsetX, event.offsetY);
  if (!cell) return;
  if (cell.rows.length === 1) location.assign(siteUrl(cell.rows[0])); else zoomTo(cell);
});
canvas.addEventListener("pointerleave", () => { view.over = null; showTip(null); view.draw(); });
canvas.addEventListener("wheel", (event) => { event.preventDefault(); showTip(null); view.zoom(Math.exp(-event.deltaY * 0.0018), event.offsetX, event.offsetY); redraw(); }, { passive: false });
const ARROWS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
canvas.addEventListener("keydown", (event) => { const arrow = ARROWS[event.key]; if (arrow) { event.preventDefault(); view.pan(arrow[0] * 80, arrow[1] * 80); redraw(); } });

const acts = {
  "+": () => { view.zoom(1.6); redraw(); }, "=": () => acts["+"](), "-": () => { view.zoom(1 / 1.6); redraw(); }, "0": () => { view.fit(); redraw(); },
  "l": () => { if (rows.contains(document.activeElement)) canvas.focus(); else (rows.querySelector("a, button") ?? rows).focus(); },
};
for (const [key, act] of Object.entries(acts)) onKey(key, () => { act(); return true; });
page.addEventListener("click", (event) => {
  const tool = event.target.closest("[data-key]");
  if (tool) acts[tool.dataset.key]();
  const chip = event.target.closest("[data-filter]");
  if (chip) {
    const on = chip.getAttribute("aria-pressed") !== "true";
    chip.setAttribute("aria-pressed", String(on));
    view.shown[STATES.indexOf(chip.dataset.filter)] = on;
    redraw();
  }
});
matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => { view.setColours(readColours()); redraw(); });

async function start() {
  view.resize();
  const [layout, outlines] = await Promise.all([
    fetch(page.dataset.layout).then((response) => response.json()),
    fetch(page.dataset.outlines).then((response) => response.json()).catch(() => null),
  ]);
  store.setLayout(layout);
  view.setPlaces();
  if (outlines) view.setOutlines(outlines); else put(document.getElementById("map-note"), words.failed);
  view.fit();
  redraw();
  new ResizeObserver(() => { view.resize(); redraw(); }).observe(canvas);
  document.fonts.ready.then(() => { view.forgetWidths(); redraw(); });
  let due = 0;
  link = new Live({
    store,
    urls: { socket: new URL("/live/", location.href.replace(/^http/, "ws")).href, frames: page.dataset.frames },
    onFrames: () => { const wait = due - performance.now(); if (wait > 0) return; due = performance.now() + 950; redraw(); },
    onState: showLiveState,
  });
}
canvas.map = { view, store };
start();
