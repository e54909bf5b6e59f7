// A map on our own outlines: Mercator, canvas 2D; clusters by worst health with counts, single sites when they stand apart. No tiles, no network.
import { drawMark } from "./marks.js";

const CELL_X = 92, CELL_Y = 52; // one cluster per cell at most, CSS pixels
const ORDER = [2, 3, 1, 4, 0]; // worst first
const LIMIT = 3.5e6; // largest scale: CSS pixels for the world's width

const worldX = (lon) => (lon + 180) / 360;
const worldY = (lat) => { const clamped = Math.max(-84, Math.min(84, lat)) * Math.PI / 180; return 0.5 - Math.log(Math.tan(Math.PI / 4 + clamped / 2)) / (2 * Math.PI); };

const GAP = 5; // between two marks, CSS pixels
const PILL = 22, MARK = 18; // heights of a cluster and of a single site

const touch = (a, b) => a.x < b.x + b.w + GAP && b.x < a.x + a.w + GAP && a.y < b.y + b.h + GAP && b.y < a.y + a.h + GAP;

export class MapView {
  constructor(canvas, store) {
    Object.assign(this, { canvas, store, paths: null, clusters: [], widths: new Map(), over: null, shown: [true, true, true, true, true] });
    this.g = canvas.getContext("2d", { alpha: false });
    this.x = this.y = 0.5;
    this.scale = 1000;
  }

  setColours(colours) { this.colours = colours; }

  setOutlines({ steps, land, countries, states }) {
    const path = (lines, closed) => {
      const made = new Path2D();
      for (const line of lines) {
        let x = line[0], y = line[1];
        made.moveTo(worldX(x / steps), worldY(y / steps));
        for (let i = 2; i < line.length; i += 2) { x += line[i]; y += line[i + 1]; made.lineTo(worldX(x / steps), worldY(y / steps)); }
        if (closed) made.closePath();
      }
      return made;
    };
    this.paths = { land: path(land, true), countries: path(countries), states: path(states) };
  }

  // Places of the sites, from the layout. Sites without coordinates have none.
  setPlaces() {
    const { lat, lon } = this.store.layout.sites, n = this.store.count;
    this.px = new Float64Array(n).fill(NaN);
    this.py = new Float64Array(n);
    for (let i = 0; i < n; i++) if (lat[i] != null && lon[i] != null) { this.px[i] = worldX(lon[i]); this.py[i] = worldY(lat[i]); }
  }

  resize() {
    this.ratio = Math.min(devicePixelRatio || 1, 3);
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
  }

  // All sites in view.
  fit(rows = null) {
    let left = Infinity, right = -Infinity, top = Infinity, bottom = -Infinity;
    const look = (i) => { if (this.px[i] !== this.px[i]) return; left = Math.min(left, this.px[i]); right = Math.max(right, this.px[i]); top = Math.min(top, this.py[i]); bottom = Math.max(bottom, this.py[i]); };
    if (rows) rows.forEach(look); else for (let i = 0; i < this.px.length; i++) look(i);
    if (left > right) { [left, right, top, bottom] = [0, 1, 0.2, 0.8]; }
    this.x = (left + right) / 2;
    this.y = (top + bottom) / 2;
    const pad = rows ? 0.55 : 0.8;
    this.scale = Math.min(LIMIT, this.width * pad / Math.max(right - left, 1e-6), this.height * pad / Math.max(bottom - top, 1e-6));
    if (!rows) this.scale = Math.min(this.scale, 60_000);
  }

  zoom(factor, cssX = this.width / 2, cssY = this.height / 2) {
    const scale = Math.max(this.width * 0.8, Math.min(LIMIT, this.scale * factor));
    const wx = this.x + (cssX - this.width / 2) / this.scale, wy = this.y + (cssY - this.height / 2) / this.scale;
    this.scale = scale;
    this.x = wx - (cssX - this.width / 2) / scale;
    this.y = wy - (cssY - this.height / 2) / scale;
    this.#clamp();
  }

  pan(dx, dy) { this.x -= dx / this.scale; this.y -= dy / this.scale; this.#clamp(); }

  #clamp() { this.x = Math.max(0, Math.min(1, this.x)); this.y = Math.max(0.05, Math.min(0.95, this.y)); }

  // Clusters of what is in view and shown, worst first. `label(cell)` is the text in a cluster: its width decides what has room beside it.
  cluster(label) {
    const cells = new Map();
    const { px, py, scale, width, height } = this, state = this.store.state;
    const ox = width / 2 - this.x * scale, oy = height / 2 - this.y * scale;
    const total = [0, 0, 0, 0, 0];
    for (let i = 0; i < px.length; i++) {
      const x = px[i] * scale + ox, y = py[i] * scale + oy;
      if (!(x >= -20 && x <= width + 20 && y >= -20 && y <= height + 20)) continue;
      total[state[i]]++;
      if (!this.shown[state[i]]) continue;
      const key = Math.floor(x / CELL_X) * 4096 + Math.floor(y / CELL_Y);
      let cell = cells.get(key);
      if (!cell) cells.set(key, cell = { rows: [], x: 0, y: 0, counts: [0, 0, 0, 0, 0] });
      cell.rows.push(i);
      cell.x += x;
      cell.y += y;
      cell.counts[state[i]]++;
    }
    for (const cell of cells.values()) { cell.x /= cell.rows.length; cell.y /= cell.rows.length; this.#place(cell, label); }
    this.clusters = this.#merged([...cells.values()], label);
    this.clusters.sort((a, b) => ORDER.indexOf(a.worst) - ORDER.indexOf(b.worst) || b.counts[b.worst] - a.counts[a.worst] || b.rows.length - a.rows.length);
    this.inView = total;
    return this.clusters;
  }

  // What cell is called and where it lies.
  #place(cell, label) {
    cell.worst = ORDER.find((one) => cell.counts[one]);
    cell.text = cell.rows.length === 1 ? "" : label(cell);
    const w = cell.text ? 32 + this.#widthOf(cell.text) : MARK, h = cell.text ? PILL : MARK;
    cell.box = { x: Math.round(cell.x - w / 2), y: Math.round(cell.y - h / 2), w, h };
  }

  // The font came only now: texts are wider or narrower than they were.
  forgetWidths() { this.widths.clear(); }

  #widthOf(text) {
    if (this.widths.size > 5000) this.widths.clear();
    if (!this.widths.has(text)) { this.g.font = `600 12px ${this.colours.font}`; this.widths.set(text, Math.ceil(this.g.measureText(text).width)); }
    return this.widths.get(text);
  }

  // Marks that would lie on each other become one: the larger takes the smaller in, and stays where it is. Its text may grow, so this goes on until nothing touches.
  #merged(cells, label) {
    cells.sort((a, b) => b.rows.length - a.rows.length);
    let kept = cells, before;
    do {
      before = kept.length;
      const round = [];
      for (const cell of kept) {
        const near = round.find((other) => touch(other.box, cell.box));
        if (!near) { round.push(cell); continue; }
        for (const row of cell.rows) near.rows.push(row);
        cell.counts.forEach((n, i) => { near.counts[i] += n; });
        this.#place(near, label);
      }
      kept = round;
    } while (kept.length < before);
    return kept;
  }

  draw() {
    const { g, ratio, colours, width, height, scale } = this;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.fillStyle = colours.bg;
    g.fillRect(0, 0, this.canvas.width, this.canvas.height);
    if (this.paths) {
      const s = scale * ratio;
      g.setTransform(s, 0, 0, s, (width / 2 - this.x * scale) * ratio, (height / 2 - this.y * scale) * ratio);
      g.fillStyle = colours.panel;
      g.fill(this.paths.land, "evenodd");
      g.strokeStyle = colours.line;
      g.lineWidth = 1 / scale;
      g.stroke(this.paths.land);
      if (scale > 2500) g.stroke(this.paths.states);
      g.strokeStyle = colours.lineStrong;
      g.stroke(this.paths.countries);
    }
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.textBaseline = "middle";
    // The worst on top.
    for (let i = this.clusters.length - 1; i >= 0; i--) this.#drawCluster(this.clusters[i]);
  }

  #drawCluster(cell) {
    const { g, colours } = this;
    const { x, y, w, h } = cell.box;
    const lit = this.over === cell;
    if (!cell.text) {
      drawMark(g, cell.worst, cell.x, cell.y, lit ? 15 : 12, colours);
      if (lit) { g.strokeStyle = colours.text; g.lineWidth = 1; g.strokeRect(x, y, w, h); }
      return;
    }
    g.font = `600 12px ${colours.font}`;
    g.beginPath();
    g.roundRect(x, y, w, h, h / 2);
    g.fillStyle = colours.panel2;
    g.fill();
    g.lineWidth = lit ? 2 : 1;
    g.strokeStyle = lit ? colours.text : cell.worst ? colours.states[cell.worst] : colours.lineStrong;
    g.stroke();
    drawMark(g, cell.worst, x + 13, y + h / 2, 10, colours);
    g.fillStyle = cell.worst ? colours.text : colours.text2;
    g.fillText(cell.text, x + 23, y + h / 2 + 1);
  }

  at(x, y) { return this.clusters.find(({ box }) => box && x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h) ?? null; }
}
