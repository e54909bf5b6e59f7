// The wall: counts, grid, side panels, clocks. Runs for weeks: nodes are reused, nothing grows; it never pauses.
import { onKey } from "../lib/keys.js";
import { duration } from "../lib/times.js";
import { FleetStore, NO_UTILIZATION, SILENT, STATES } from "../lib/fleet_store.js";
import { Live } from "../lib/live.js";
import { markElement, readColours } from "../lib/marks.js";
import { WallGrid, ZOOM_STEP } from "../lib/wall_grid.js";

const page = document.getElementById("wall");
const words = document.getElementById("wall-words").dataset;
const by = (id) => document.getElementById(id);
const fill = (text, ...values) => values.reduce((line, value) => line.replace("%s", value), text);
const number = new Intl.NumberFormat(document.documentElement.lang || "en");
const STALE_BANNER = 5, STALE_FADE = 30; // seconds without a new frame
const PANELS = 10_000, LAYOUT = 60_000, ROTATE = Number(page.dataset.rotate) * 1000;
const own = document.getElementById("wall-regions");
const only = own ? new Set(JSON.parse(own.textContent)) : null;
// On the wall itself panes are read at a distance: what is fine stays quiet.
const store = new FleetStore();
const words_of = { number: (n) => number.format(n), sites: (n) => fill(words.sites, number.format(n)), state: (i, n) => fill(words[`n${STATES[i][0].toUpperCase()}${STATES[i].slice(1)}`], number.format(n)) };
const grid = new WallGrid(by("grid"), by("overlay"), store, words_of);
let held = false, sound = null, lastDown = NaN, summaryDue = true, soon = 0, link = null;

guard();
grid.setColours(readColours());
matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => { grid.setColours(readColours()); grid.draw(); });
new ResizeObserver(() => grid.resize()).observe(by("canvas-box"));
document.fonts?.ready.then(() => grid.draw());

// Layout first: frames need a row to land in.
let layoutTag = "";
async function loadLayout() {
  const response = await fetch(page.dataset.layout, { headers: layoutTag ? { "If-None-Match": layoutTag } : {}, cache: "no-store" });
  if (response.status === 304) return false;
  if (!response.ok) throw new Error(`layout: ${response.status}`);
  layoutTag = response.headers.get("ETag") ?? "";
  store.setLayout(await response.json());
  grid.setContent(only);
  by("wall-empty").hidden = grid.order.length > 0;
  listRows.length = 0;
  by("region-rows").replaceChildren();
  summaryDue = true;
  return true;
}

const listRows = [];
async function start() {
  for (let wait = 500; ; wait = Math.min(wait * 2, 15_000)) {
    try { await loadLayout(); break; } catch { showLink({ state: "lost", since: startedAt, nextTry: Date.now() + wait }); await new Promise((done) => setTimeout(done, wait)); }
  }
  link = new Live({
    store, neverPause: true,
    urls: { socket: new URL(page.dataset.socket, location.href.replace(/^http/, "ws")).href, frames: page.dataset.frames },
    onFrames: (changed) => { grid.drawChanged(changed); summaryDue = true; soon ||= setTimeout(() => { soon = 0; tick(); }, 60); if (store.strangers) setTimeout(() => loadLayout().catch(() => {}), 2000 + 3000 * Math.random()); store.strangers = 0; },
    onState: showLink,
    onNotice: () => { panelsDue = Math.min(panelsDue, performance.now() + 2000); },
    onHello: (hello) => { if (hello.version !== page.dataset.version) setTimeout(() => location.reload(), 5000 * Math.random()); },
  });
  setInterval(() => loadLayout().catch(() => {}), LAYOUT);
}
const startedAt = Date.now();
start();

// Once a second, and right after frames so that numbers agree with cells: clocks, counts, ages, banner.
let linkState = { state: "connecting", since: Date.now(), nextTry: null };
function showLink(state) { linkState = state; tick(); }
const utc = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const local = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone.split("/").pop().replaceAll("_", " ");
const clock = (milliseconds) => `${utc.format(milliseconds)} UTC`;

function put(element, text) { if (element.textContent !== text) element.textContent = text; }

function tick() {
  const now = link ? link.now() : Date.now() / 1000;
  put(by("utc"), clock(now * 1000));
  put(by("local"), zone === "UTC" ? "" : `${local.format(now * 1000)} ${zone} · `);
  const age = now - store.newest;
  put(by("data-age"), Number.isNaN(store.newest) ? words.noData : fill(words.dataAge, duration(age)));
  put(by("link"), words[linkState.state] ?? linkState.state);
  page.dataset.state = linkState.state;
  banner(age);
  if (summaryDue) { summaryDue = false; showSummary(); }
  if (performance.now() > panelsDue) refreshPanels();
}
setInterval(tick, 1000);

function banner(age) {
  const box = by("wall-banner");
  const since = clock(linkState.since), next = duration(Math.max(0, ((linkState.nextTry ?? Date.now()) - Date.now()) / 1000));
  const old = Number.isNaN(store.newest) ? words.noData : duration(age);
  let kind = "", what = "", more = "";
  if (linkState.state === "polling") { kind = "polling"; what = words.bPolling; more = fill(words.bPollingMore, since, next); }
  else if (linkState.state === "lost") { kind = "lost"; what = linkState.reason ? words.bEnded : words.bLost; more = linkState.reason ? fill(words.bEndedMore, old) : fill(words.bLostMore, since, old, next); }
  else if (age > STALE_BANNER) { kind = "stale"; what = words.bStale; more = fill(words.bStaleMore, old); }
  if (box.hidden !== !kind) box.hidden = !kind;
  if (kind) { box.dataset.kind = kind; put(by("banner-what"), what); put(by("banner-more"), more); }
  const fade = linkState.state === "lost" || age > STALE_FADE;
  if (fade !== grid.faded) { grid.faded = fade; page.toggleAttribute("data-faded", fade); grid.draw(); }
}

// Counts, power, regions, titles: from one pass over the store.
const countItems = [...by("counts").children];
function showSummary() {
  const summary = only ? narrowed(store.summary()) : store.summary();
  const { total } = summary;
  for (const item of countItems) {
    const n = total.counts[STATES.indexOf(item.dataset.state)];
    put(item.querySelector("b"), total.sites ? number.format(n) : "–");
    item.toggleAttribute("data-some", n > 0);
  }
  const oldest = total.oldest === total.oldest && link ? ` · ${fill(words.oldest, duration(link.now() - total.oldest))}` : "";
  put(by("reporting"), !total.sites ? words.noSites : total.reporting === total.sites ? fill(words.allReporting, number.format(total.sites)) : fill(words.reporting, number.format(total.reporting), number.format(total.sites)) + oldest);
  grid.drawTitles(summary);
  showPower(summary);
  if (!held) showWorst(summary);
  if (!by("wall-list").hidden) showList(summary);
  const down = total.counts[2];
  if (sound && down > lastDown) beep();
  lastDown = down;
}

// The view's regions only.
function narrowed(summary) {
  const total = { counts: [0, 0, 0, 0, 0], sites: 0, reporting: 0, seen: 0, oldest: NaN };
  store.layout.regions.forEach((region, r) => {
    if (!only.has(region.id)) return;
    const one = summary.regions[r];
    total.sites += one.sites;
    total.reporting += one.reporting;
    one.counts.forEach((n, i) => { total.counts[i] += n; });
  });
  return { total, regions: summary.regions };
}

const inView = (region) => !only || only.has(region.id);
const powerRows = [], POWER_ROWS = 5;
const powerWords = by("power-note").textContent, allWords = by("power").dataset.all;
function showPower({ regions }) {
  const KEYS = ["power", "powerOf", "fed", "feed", "fedOf", "sites"];
  const make = (name) => ({ name, power: 0, powerOf: 0, fed: 0, feed: 0, fedOf: 0, sites: 0 });
  const all = make(allWords), areas = store.layout.areas.map((area) => make(area.name));
  store.layout.regions.forEach((region, r) => {
    if (inView(region)) for (const key of KEYS) { areas[region.area][key] += regions[r][key]; all[key] += regions[r][key]; }
  });
  const load = (area) => (area.fedOf ? area.fed / area.feed : area.powerOf ? 0 : -1);
  const sorted = areas.filter((area) => area.sites).sort((a, b) => load(b) - load(a));
  const shown = sorted.length > 1 ? [all, ...sorted.slice(0, POWER_ROWS - 1)] : sorted;
  const unit = Math.max(...shown.map((area) => Math.max(area.feed, area.power)), 0) >= 1e6 ? [1e6, "MW"] : [1e3, "kW"];
  const watts = (value) => (value / unit[0]).toFixed(value / unit[0] < 100 ? 2 : 1);
  put(by("power-note"), `${powerWords}, ${unit[1]}`);
  shown.forEach((area, i) => {
    const row = powerRows[i] ??= powerRow();
    const partial = area.powerOf && area.powerOf < area.sites;
    const of = fill(words.powerOf, number.format(area.powerOf), number.format(area.sites));
    put(row.name, area.name);
    put(row.of, partial ? of : "");
    put(row.value, !area.powerOf ? words.noPower : area.fedOf ? `${watts(area.fed)} / ${watts(area.feed)}` : watts(area.power));
    row.bar.setAttribute("width", Math.min(100, Math.max(0, 100 * load(area))).toFixed(1));
    row.svg.setAttribute("class", load(area) > 0.97 ? "bar high" : "bar");
    if (row.element.parentNode === null) by("power-rows").append(row.element);
  });
  powerRows.splice(shown.length).forEach((row) => row.element.remove());
}
function powerRow() {
  const element = document.createElement("div");
  element.className = "power-row";
  const name = Object.assign(document.createElement("span"), { className: "name" });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 6");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const bar = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
  bar.setAttribute("height", "6");
  const value = Object.assign(document.createElement("span"), { className: "num" }), of = Object.assign(document.createElement("span"), { className: "faint of" });
  element.append(name, svg, value, of);
  return { element, name, svg, bar, value, of };
}

const WORST = 6;
const worstRows = Array.from({ length: WORST }, () => {
  const element = document.createElement("li"), name = Object.assign(document.createElement("span"), { className: "name" }), text = Object.assign(document.createElement("span"), { className: "num" });
  const mark = markElement("ok");
  element.append(mark, name, text);
  element.hidden = true;
  by("worst-rows").append(element);
  return { element, name, text, mark };
});
const allOk = Object.assign(document.createElement("li"), { className: "quiet-line", textContent: words.allOk, hidden: true });
by("worst-rows").append(allOk);
const RANK = [2, 3, 1]; // down, unknown, degraded
function showWorst({ regions }) {
  const lines = [];
  store.layout.regions.forEach((region, r) => { if (inView(region) && regions[r].sites && RANK.some((state) => regions[r].counts[state])) lines.push({ region, of: regions[r] }); });
  const badness = ({ of }) => (of.counts[2] + 0.8 * of.counts[3] + 0.2 * of.counts[1]) / of.sites;
  lines.sort((a, b) => badness(b) - badness(a) || (a.region.slug < b.region.slug ? -1 : 1));
  worstRows.forEach((row, i) => {
    const line = lines[i];
    row.element.hidden = !line;
    if (!line) return;
    const worst = RANK.find((state) => line.of.counts[state]);
    row.mark.setAttribute("class", `mark mark-${STATES[worst]}`);
    row.mark.firstChild.setAttribute("href", `#mark-${STATES[worst]}`);
    put(row.name, line.region.name);
    put(row.text, RANK.filter((state) => line.of.counts[state]).slice(0, 2).map((state) => words_of.state(state, line.of.counts[state])).join(" · "));
  });
  allOk.hidden = lines.length > 0 || !store.count;
}

// The same as a table.
function showList({ regions }) {
  store.layout.regions.forEach((region, r) => {
    if (!inView(region) || !regions[r].sites) return;
    let row = listRows[r];
    if (!row) {
      row = listRows[r] = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = region.name;
      const area = Object.assign(document.createElement("span"), { className: "faint", textContent: ` ${store.layout.areas[region.area].name}` });
      head.append(area);
      row.append(head, ...Array.from({ length: 7 }, () => Object.assign(document.createElement("td"), { className: "num" })));
      by("region-rows").append(row);
    }
    const one = regions[r];
    [one.sites, one.reporting, ...one.counts].forEach((n, i) => { const cell = row.children[i + 1]; put(cell, number.format(n)); cell.toggleAttribute("data-some", i > 2 && n > 0); });
  });
}

// Findings, windows, quality: rendered by the server.
let panelsDue = performance.now() + PANELS, panelsText = "";
async function refreshPanels() {
  panelsDue = performance.now() + PANELS;
  try {
    const response = await fetch(page.dataset.panels, { headers: { "X-Automatic": "1" }, redirect: "error" });
    if (!response.ok) return;
    const text = await response.text();
    if (text === panelsText || held) return;
    panelsText = text;
    const parsed = new DOMParser().parseFromString(text, "text/html");
    by("panels").replaceChildren(...parsed.body.childNodes);
  } catch { /* the banner tells of a console that does not answer */ }
}

// Tooltip, focus, click.
const tip = by("tip"), canvas = by("grid");
function describe(row) {
  const sites = store.layout.sites, region = store.layout.regions[store.region[row]];
  const now = link ? link.now() : Date.now() / 1000;
  const state = STATES[store.state[row]];
  const lines = [`${sites.name[row] === sites.code[row] ? "" : `${sites.name[row]} · `}${region.name}`];
  if (!store.seen[row]) lines.push(words.notJudged);
  else {
    if (store.expected[row]) lines.push(fill(words.gpus, store.reporting[row], store.expected[row]) + (store.utilization[row] === NO_UTILIZATION ? "" : ` · ${fill(words.use, `${Math.round(store.utilization[row] / 100)} %`)}`));
    if (store.flags[row] & SILENT || grid.faded) lines.push(store.contact[row] === store.contact[row] ? fill(words.contact, duration(now - store.contact[row])) : words.never);
  }
  return { code: sites.code[row], state, word: words[state], since: store.since[row] === store.since[row] && store.seen[row] ? fill(words.since, `${clock(store.since[row] * 1000)} · ${duration(now - store.since[row])}`) : "", lines };
}
function showTip(row) {
  tip.hidden = row < 0;
  if (row < 0) return;
  const about = describe(row), box = grid.boxOf(row);
  const head = document.createElement("b");
  head.textContent = about.code;
  const state = Object.assign(document.createElement("span"), { className: "state" });
  state.append(markElement(about.state), `${about.word} ${about.since}`);
  tip.replaceChildren(head, state, ...about.lines.map((line) => Object.assign(document.createElement("span"), { textContent: line })));
  const x = box.x / grid.ratio, y = box.y / grid.ratio, size = box.size / grid.ratio;
  const left = x + size + 10 + tip.offsetWidth > canvas.clientWidth ? x - tip.offsetWidth - 10 : x + size + 10;
  const top = Math.min(y, canvas.clientHeight - tip.offsetHeight - 4);
  tip.style.transform = `translate(${Math.max(0, Math.round(left))}px, ${Math.max(0, Math.round(top))}px)`;
}
function open(row) { if (row >= 0 && page.dataset.siteUrl) location.assign(page.dataset.siteUrl + encodeURIComponent(store.layout.sites.code[row])); }

let drag = null;
canvas.addEventListener("pointermove", (event) => {
  if (drag && event.buttons) {
    const dx = (event.clientX - drag.x) * grid.ratio, dy = (event.clientY - drag.y) * grid.ratio;
    if (drag.moved || Math.hypot(dx, dy) > 6) { drag.moved = true; grid.x = drag.gx + dx; grid.y = drag.gy + dy; grid.clampPan(); showTip(-1); redraw(); }
    return;
  }
  const row = grid.rowAt(event.offsetX, event.offsetY);
  if (row === grid.over) return;
  grid.over = row;
  canvas.toggleAttribute("data-over", row >= 0 && Boolean(page.dataset.siteUrl));
  grid.drawOverlay();
  showTip(row);
});
canvas.addEventListener("pointerleave", () => { grid.over = -1; grid.drawOverlay(); showTip(document.activeElement === canvas ? grid.focus : -1); });
canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, y: event.clientY, gx: grid.x, gy: grid.y, moved: false }; });
canvas.addEventListener("pointerup", (event) => { const moved = drag?.moved; drag = null; if (!moved) open(grid.rowAt(event.offsetX, event.offsetY)); });
canvas.addEventListener("wheel", (event) => { event.preventDefault(); grid.zoom(Math.exp(-event.deltaY * 0.0015), event.offsetX * grid.ratio, event.offsetY * grid.ratio); redraw(); }, { passive: false });
canvas.addEventListener("focus", () => { if (canvas.matches(":focus-visible")) focusRow(grid.focus < 0 ? grid.order[0] ?? -1 : grid.focus); });
canvas.addEventListener("blur", () => { const row = grid.focus; grid.focus = -1; grid.drawOverlay(); grid.focus = row; showTip(-1); });
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
canvas.addEventListener("keydown", (event) => {
  const arrow = ARROWS[event.key];
  if (arrow) { event.preventDefault(); focusRow(grid.neighbour(grid.focus, ...arrow)); }
  else if (event.key === "Enter" && grid.focus >= 0) { event.preventDefault(); open(grid.focus); }
  else if (event.key === "Escape") showTip(-1);
});
function focusRow(row) {
  grid.focus = row;
  if (row < 0) return;
  if (grid.reveal(row)) grid.draw(); else grid.drawOverlay();
  showTip(row);
  const about = describe(row);
  put(by("focus-text"), [about.code, about.word, about.since, ...about.lines].join(", "));
}

// One full redraw per frame at most.
let drawing = 0;
function redraw() { if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; grid.draw(); }); }
let target = 1, glide = 0;
function zoomTo(z) {
  target = Math.min(12, Math.max(1, z));
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) { grid.zoom(target / grid.z); redraw(); return; }
  if (!glide) glide = requestAnimationFrame(step);
}
function step() {
  const rest = Math.log(target / grid.z);
  const focus = grid.focus >= 0 && document.activeElement === canvas ? grid.boxOf(grid.focus) : null;
  grid.zoom(Math.abs(rest) < 0.01 ? target / grid.z : Math.exp(rest * 0.25), focus?.x, focus?.y);
  grid.draw();
  glide = grid.z === target ? 0 : requestAnimationFrame(step);
}

// Keys and their buttons.
const acts = {
  "n": () => location.assign(page.dataset.next + location.search),
  "p": () => location.assign(page.dataset.previous + location.search),
  " ": () => { held = !held; by("hold-note").hidden = !held; pressed(" ", held); },
  "m": () => { if (sound) { sound.close(); sound = null; } else { sound = new AudioContext(); lastDown = store.summary().total.counts[2]; } by("sound-note").hidden = !sound; pressed("m", Boolean(sound)); },
  "v": () => { const list = by("wall-list"); list.hidden = !list.hidden; by("canvas-box").hidden = !list.hidden; pressed("v", !list.hidden); if (!list.hidden) { showSummary(); list.focus(); } else grid.resize(); },
  "+": () => zoomTo(target * ZOOM_STEP), "=": () => zoomTo(target * ZOOM_STEP), "-": () => zoomTo(target / ZOOM_STEP), "0": () => zoomTo(1),
};
function pressed(key, on) { document.querySelector(`[data-key="${key}"]`)?.setAttribute("aria-pressed", String(on)); }
for (const [key, act] of Object.entries(acts)) onKey(key, (event) => { if (key === " " && event.target.closest("button, summary, a")) return false; act(); return true; });
page.addEventListener("click", (event) => { const button = event.target.closest("[data-key]"); if (button) acts[button.dataset.key](); });

// Two soft tones, at most one pair in ten seconds.
let beeped = -Infinity;
function beep() {
  if (performance.now() - beeped < 10_000) return;
  beeped = performance.now();
  [660, 520].forEach((frequency, i) => {
    const tone = sound.createOscillator(), level = sound.createGain(), at = sound.currentTime + i * 0.22;
    tone.frequency.value = frequency;
    level.gain.setValueAtTime(0, at);
    level.gain.linearRampToValueAtTime(0.12, at + 0.02);
    level.gain.exponentialRampToValueAtTime(0.001, at + 0.2);
    tone.connect(level).connect(sound.destination);
    tone.start(at);
    tone.stop(at + 0.21);
  });
}

// Turns through the views; held, it stays.
if (ROTATE) setInterval(() => { if (!held && linkState.state === "live") acts.n(); }, ROTATE);

// After an error of this script the wall starts anew, at most once a minute.
function guard() {
  const again = () => {
    const last = Number(sessionStorage.getItem("wall-reloaded") ?? 0);
    if (Date.now() - last < 60_000) return;
    sessionStorage.setItem("wall-reloaded", String(Date.now()));
    setTimeout(() => location.reload(), 10_000);
  };
  addEventListener("error", again);
  addEventListener("unhandledrejection", again);
}

// For tests and the benchmark: where a site's cell is, what it should show, and what the pixels are.
canvas.probe = (id) => {
  const row = store.index.get(id), box = row === undefined ? null : grid.boxOf(row);
  if (!box) return null;
  const { x, y, size } = box;
  return { row, x, y, size, ground: grid.ground[row], state: store.state[row], pixels: [...grid.g.getImageData(x, y, size, size).data] };
};
canvas.wall = { grid, store, redraw, zoomTo, get link() { return link; } };
