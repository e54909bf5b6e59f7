// Health marks: shape and colour together, never colour alone. For canvas (stamps) and for the DOM (the symbols of components/marks.html).
import { STATES } from "./fleet_store.js";

export function readColours(element = document.documentElement) {
  const style = getComputedStyle(element);
  const token = (name) => style.getPropertyValue(name).trim();
  return {
    quiet: style.colorScheme === "light" ? [0.42, 0.34] : [0.62, 0.5], // how strongly the colour of ok shows in grids
    states: STATES.map((state) => token(`--${state}`)),
    bg: token("--bg"), panel: token("--panel"), panel2: token("--panel-2"), line: token("--line"), lineStrong: token("--line-strong"),
    text: token("--text"), text2: token("--text-2"), text3: token("--text-3"), accent: token("--accent"), focus: token("--focus"), font: token("--font"),
  };
}

export function markElement(state, name = "") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", `mark mark-${state}`);
  svg.setAttribute("viewBox", "0 0 12 12");
  if (name) { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", name); } else svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#mark-${state}`);
  svg.append(use);
  return svg;
}

// One cell of a grid, `size` device pixels wide with its gap. What is fine steps back; `odd` tells neighbouring regions apart a little.
export function drawCell(g, state, size, colours, odd, faded) {
  const ground = colours.bg;
  const gap = size >= 5 ? Math.max(1, Math.round(size * 0.16)) : size >= 3 ? 1 : 0;
  const m = size - gap;
  g.globalAlpha = 1;
  g.fillStyle = ground;
  g.fillRect(0, 0, size, size);
  const colour = faded ? colours.text3 : colours.states[state];
  g.fillStyle = g.strokeStyle = colour;
  g.globalAlpha = faded ? 0.55 : state === 0 ? colours.quiet[odd ? 1 : 0] : 1;
  if (state === 1) {
    polygon(g, [[m / 2, 0], [m, m], [0, m]]);
  } else if (state === 2) {
    polygon(g, [[m / 2, 0], [m, m / 2], [m / 2, m], [0, m / 2]]);
    if (m >= 9) { g.globalAlpha = 1; g.fillStyle = ground; g.fillRect(Math.round(m * 0.28), Math.round(m / 2 - m / 14), Math.round(m * 0.44), Math.max(1, Math.round(m / 7))); }
  } else if (state === 3) {
    hatch(g, m);
  } else if (state === 4) {
    g.fillRect(0, 0, m, m);
    if (m >= 6) { g.globalAlpha = 1; g.fillStyle = ground; const inset = Math.round(m * 0.36); g.fillRect(inset, inset, m - 2 * inset, m - 2 * inset); }
  } else if (m >= 9) {
    roundRect(g, m, Math.min(3, m * 0.18));
  } else g.fillRect(0, 0, m, m);
  g.globalAlpha = 1;
}

// Larger marks on the map, centred on (x, y).
export function drawMark(g, state, x, y, size, colours) {
  const h = size / 2;
  g.fillStyle = g.strokeStyle = colours.states[state];
  if (state === 0) { g.beginPath(); g.arc(x, y, h, 0, 2 * Math.PI); g.fill(); }
  else if (state === 1) polygon(g, [[x, y - h], [x + h, y + h * 0.85], [x - h, y + h * 0.85]]);
  else if (state === 2) {
    polygon(g, [[x, y - h * 1.1], [x + h * 1.1, y], [x, y + h * 1.1], [x - h * 1.1, y]]);
    g.fillStyle = colours.bg;
    g.fillRect(x - h * 0.5, y - h * 0.14, h, h * 0.28);
  } else if (state === 3) {
    g.beginPath(); g.arc(x, y, h * 0.86, 0, 2 * Math.PI);
    g.lineWidth = Math.max(1.2, size * 0.13); g.setLineDash([size * 0.2, size * 0.14]); g.stroke(); g.setLineDash([]);
  } else g.fillRect(x - h * 0.86, y - h * 0.86, h * 1.72, h * 1.72);
}

function polygon(g, points) {
  g.beginPath();
  points.forEach(([x, y], i) => (i ? g.lineTo(x, y) : g.moveTo(x, y)));
  g.closePath();
  g.fill();
}

function roundRect(g, m, radius) { g.beginPath(); g.roundRect(0, 0, m, m, radius); g.fill(); }

// Unknown: a hollow cell with a stroke across; nothing in it claims a value.
function hatch(g, m) {
  const line = Math.max(1, Math.round(m / 10));
  g.lineWidth = line;
  if (m < 3) { g.globalAlpha *= 0.7; g.fillRect(0, 0, m, m); return; }
  g.strokeRect(line / 2, line / 2, m - line, m - line);
  g.save();
  g.beginPath(); g.rect(0, 0, m, m); g.clip();
  g.beginPath();
  const step = m >= 14 ? m / 3 : m;
  for (let at = step; at < 2 * m; at += step) { g.moveTo(0, at); g.lineTo(at, 0); }
  g.stroke();
  g.restore();
}
