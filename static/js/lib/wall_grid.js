// The grid of all sites on a canvas: one cell a site, one cell size everywhere, stamped from pre-rendered cells; only changed cells are drawn again.
// A full redraw copies the stamps' pixels into one image: its cost depends on the canvas alone, not on how many sites there are.
import { drawCell } from "./marks.js";

const HEAD = 36, GAP = 14, GROUP_HEAD = 22; // CSS pixels
const NARROWEST = 84; // of a block, CSS pixels: its title has to be read
const LARGEST = 40, ZOOM_STEP = 1.35, LARGEST_ZOOM = 12;
const WEIGHT = [0, 0.2, Infinity, 0.8, 0.05]; // of a site in each state
const REGION_BLOCKS = 48; // up to this many regions each is a block of its own; beyond, an area is

export class WallGrid {
  // words: { sites(n), state(i, n) } make the line under a block's title.
  constructor(canvas, overlay, store, words) {
    Object.assign(this, { canvas, overlay, store, words });
    this.g = canvas.getContext("2d", { alpha: false, willReadFrequently: true }); // pixels are written by us, not by the graphics card
    this.o = overlay.getContext("2d");
    this.z = 1;
    this.x = this.y = 0; // where the drawing's origin stands, device pixels
    this.focus = this.over = -1;
    this.faded = false;
    this.regions = null;
    this.blocks = [];
    this.frames = 0; // full redraws, for measuring
  }

  setColours(colours) { this.colours = colours; this.tiles = null; }

  // Which rows are shown, as blocks: a region each, or an area each when there are many regions. `only`: region ids of the view, or null.
  setContent(only) {
    const { layout, region } = this.store;
    const shown = layout.regions.map((one) => !only || only.has(one.id));
    const perRegion = shown.filter(Boolean).length <= REGION_BLOCKS;
    const blocks = new Map();
    for (let i = 0; i < this.store.count; i++) {
      const r = region[i];
      if (!shown[r]) continue;
      const key = perRegion ? r : layout.regions[r].area;
      let block = blocks.get(key);
      if (!block) blocks.set(key, block = { title: perRegion ? layout.regions[r].name : layout.areas[layout.regions[r].area].name, area: layout.regions[r].area, rows: [], regions: new Set() });
      block.rows.push(i);
      block.regions.add(r);
    }
    this.blocks = [...blocks.values()];
    this.perRegion = perRegion;
    this.lastSummary = null; // was of another layout
    this.resize();
  }

  resize() {
    const ratio = Math.min(window.devicePixelRatio || 1, 3);
    const width = Math.round(this.canvas.clientWidth * ratio), height = Math.round(this.canvas.clientHeight * ratio);
    for (const canvas of [this.canvas, this.overlay]) if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    this.ratio = ratio;
    this.#place(width, height);
    this.clampPan();
    this.draw();
  }

  // The largest whole-pixel cell for which all blocks fit, trying every number of columns, with each area on lines of its own and with areas side by side.
  #place(width, height) {
    const n = this.store.count;
    this.cellX = new Float32Array(n).fill(NaN);
    this.cellY = new Float32Array(n);
    this.ground = new Uint8Array(n);
    this.order = [];
    this.at = new Map();
    if (!this.blocks.length || !width || !height) { this.cell = 0; return; }
    const head = HEAD * this.ratio, gap = GAP * this.ratio;
    // Among plans with the same cell the one with the squarest blocks.
    let best = { cell: 0, shape: Infinity };
    const manyAreas = this.perRegion && new Set(this.blocks.map((block) => block.area)).size > 1;
    const most = Math.max(...this.blocks.map((block) => block.rows.length));
    for (const flowing of manyAreas ? [false, true] : [false]) {
      for (let columns = 1; columns <= this.blocks.length; columns++) {
        const blockWidth = Math.floor((width - gap * (columns - 1)) / columns);
        if (blockWidth < NARROWEST * this.ratio && columns > 1) break;
        for (let cell = Math.min(Math.floor(LARGEST * this.ratio), blockWidth); cell >= Math.max(2, best.cell); cell--) {
          const plan = this.#plan(columns, blockWidth, cell, head, gap, manyAreas, flowing);
          if (plan.height > height) continue;
          const per = Math.max(1, Math.floor(blockWidth / cell));
          const shape = Math.abs(Math.log(Math.min(per, most) / Math.max(1, Math.ceil(most / per))));
          if (cell > best.cell || (shape < best.shape && flowing === best.flowing)) best = { cell, plan, shape, flowing };
          break;
        }
      }
    }
    if (!best.plan) { // does not fit: smallest cells, and the page may zoom and pan
      const columns = Math.max(1, Math.floor(Math.sqrt(this.blocks.length * width / height)));
      best = { cell: 2, plan: this.#plan(columns, Math.floor((width - gap * (columns - 1)) / columns), 2, head, gap, manyAreas, true) };
    }
    this.cell = best.cell;
    this.plan = best.plan;
    for (const place of best.plan.places) {
      const { block, x, y, per } = place;
      const parity = new Map([...block.regions].map((r, i) => [r, block.regions.size > 1 ? i % 2 : 0]));
      block.place = place;
      block.rows.forEach((row, k) => {
        this.cellX[row] = x + (k % per) * best.cell;
        this.cellY[row] = y + head + Math.floor(k / per) * best.cell;
        this.ground[row] = parity.get(this.store.region[row]);
        this.order.push(row);
      });
    }
    this.extent = { width, height: Math.max(height, best.plan.height) };
    this.#index();
  }

  // `flowing`: a new area goes on beside the last one, instead of beginning a line; its name stands over its first block and at the start of each line.
  #plan(columns, blockWidth, cell, head, gap, manyAreas, flowing = false) {
    const per = Math.max(1, Math.floor(blockWidth / cell));
    const groupHead = manyAreas ? GROUP_HEAD * this.ratio : 0;
    const places = [], groups = [];
    let y = 0, column = 0, rowHeight = 0, area = -1;
    const newLine = () => { if (column) { y += rowHeight + gap; column = 0; rowHeight = 0; } };
    for (const block of this.blocks) {
      const lines = Math.ceil(block.rows.length / per) * cell;
      if (flowing) {
        if (block.area !== area || !column) groups.push({ area: block.area, x: column * (blockWidth + gap), y, width: blockWidth });
        area = block.area;
        places.push({ block, x: column * (blockWidth + gap), y: y + groupHead, per, width: blockWidth });
        rowHeight = Math.max(rowHeight, groupHead + head + lines);
      } else {
        if (manyAreas && block.area !== area) { newLine(); area = block.area; groups.push({ area, x: 0, y, width: columns * (blockWidth + gap) }); y += groupHead; }
        places.push({ block, x: column * (blockWidth + gap), y, per, width: blockWidth });
        rowHeight = Math.max(rowHeight, head + lines);
      }
      if (++column === columns) newLine();
    }
    newLine();
    return { places, groups, height: y - gap, blockWidth };
  }

  // Rows sorted for hit tests: block by block.
  #index() { this.at = new Map(this.order.map((row, k) => [row, k])); }

  // Stamps of the ten cells (five states, two neighbouring regions) at one size: as canvases for single cells, as pixels for full redraws.
  #makeTiles(size) {
    const key = `${size}|${this.faded}`;
    if (this.tiles?.key === key) return this.tiles;
    const stamps = [], pixels = [];
    for (let odd = 0; odd < 2; odd++) {
      for (let state = 0; state < 5; state++) {
        const stamp = document.createElement("canvas");
        stamp.width = stamp.height = size;
        const g = stamp.getContext("2d", { alpha: false, willReadFrequently: true });
        drawCell(g, state, size, this.colours, odd === 1, this.faded);
        stamps.push(stamp);
        pixels.push(new Uint32Array(g.getImageData(0, 0, size, size).data.buffer));
      }
    }
    this.tiles = { key, size, stamps, pixels };
    return this.tiles;
  }

  #background() {
    if (this.ink?.colour !== this.colours.bg) {
      const dot = document.createElement("canvas").getContext("2d", { alpha: false, willReadFrequently: true });
      dot.fillStyle = this.colours.bg;
      dot.fillRect(0, 0, 1, 1);
      this.ink = { colour: this.colours.bg, value: new Uint32Array(dot.getImageData(0, 0, 1, 1).data.buffer)[0] };
    }
    return this.ink.value;
  }

  #size() { return Math.max(1, Math.round(this.cell * this.z)); }

  draw() {
    const { g, canvas } = this;
    const width = canvas.width, height = canvas.height;
    if (!width || !height) return;
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = g.createImageData(width, height);
      this.buffer = new Uint32Array(this.image.data.buffer);
    }
    const buffer = this.buffer.fill(this.#background());
    if (this.cell) {
      const { pixels, size } = this.#makeTiles(this.#size());
      const { cellX, cellY, ground, z, x, y, order } = this;
      const state = this.store.state;
      for (let k = 0; k < order.length; k++) {
        const row = order[k];
        const left = Math.round(cellX[row] * z + x), top = Math.round(cellY[row] * z + y);
        if (left >= width || top >= height || left <= -size || top <= -size) continue;
        const stamp = pixels[ground[row] * 5 + state[row]];
        const from = Math.max(0, -left), to = Math.min(size, width - left), last = Math.min(size, height - top);
        for (let line = Math.max(0, -top); line < last; line++) {
          let at = (top + line) * width + left + from;
          for (let i = line * size + from, end = line * size + to; i < end; i++) buffer[at++] = stamp[i];
        }
      }
    }
    g.putImageData(this.image, 0, 0);
    this.drawTitles();
    this.drawOverlay();
    this.frames++;
  }

  drawChanged(rows) {
    if (!this.cell) return;
    const { stamps, size } = this.#makeTiles(this.#size());
    const { g, cellX, cellY, ground, z, x, y, canvas } = this;
    for (const row of rows) {
      if (!(cellX[row] === cellX[row])) continue;
      const px = Math.round(cellX[row] * z + x), py = Math.round(cellY[row] * z + y);
      if (px > canvas.width || py > canvas.height || px < -size || py < -size) continue;
      g.drawImage(stamps[ground[row] * 5 + this.store.state[row]], px, py);
    }
  }

  // Titles and the line of counts of each block; `summary` from the store, drawn again at most once a second.
  drawTitles(summary = this.lastSummary) {
    this.lastSummary = summary;
    if (!this.cell || !this.plan) return;
    const { g, ratio, z } = this;
    const size = Math.min(1.5, Math.max(1, Math.sqrt(z)));
    g.textBaseline = "alphabetic";
    for (const { area, x, y, width } of this.plan.groups) {
      const left = Math.round(x * z + this.x), top = Math.round(y * z + this.y), wide = Math.round(width * z), high = Math.round(GROUP_HEAD * ratio * z) - 2;
      g.fillStyle = this.colours.bg;
      g.fillRect(left, top, wide, high);
      g.save();
      g.beginPath(); g.rect(left, top, wide, high); g.clip();
      g.fillStyle = this.colours.text3;
      g.font = `600 ${Math.round(11 * ratio * size)}px ${this.colours.font}`;
      g.fillText(this.store.layout.areas[area].name.toLocaleUpperCase(), left, top + Math.round(13 * ratio * z));
      g.restore();
    }
    for (const { block, x, y, width } of this.plan.places) {
      const left = Math.round(x * z + this.x), top = Math.round(y * z + this.y), wide = Math.round(width * z), high = Math.round(HEAD * ratio * z);
      if (top > this.canvas.height || top + high < 0 || left > this.canvas.width || left + wide < 0) continue;
      g.fillStyle = this.colours.bg;
      g.fillRect(left, top, wide, high - 1);
      g.save();
      g.beginPath(); g.rect(left, top, wide, high); g.clip();
      g.fillStyle = this.colours.text;
      g.font = `600 ${Math.round(13 * ratio * size)}px ${this.colours.font}`;
      g.fillText(block.title, left, top + Math.round(13 * ratio * z));
      g.fillStyle = this.colours.text2;
      g.font = `400 ${Math.round(12 * ratio * size)}px ${this.colours.font}`;
      g.fillText(this.#line(block, summary, wide), left, top + Math.round(28 * ratio * z));
      g.restore();
    }
  }

  // "3,420 sites · 139 unknown": as many of the exceptions as fit: what is down, then what weighs most; in a narrow block the number alone leads.
  #line(block, summary, width) {
    const whole = this.words.sites(block.rows.length);
    if (!summary) return whole;
    const counts = [0, 0, 0, 0, 0];
    for (const r of block.regions) summary.regions[r].counts.forEach((n, i) => { counts[i] += n; });
    const exceptions = [2, 3, 1, 4].filter((state) => counts[state]).sort((a, b) => counts[b] * WEIGHT[b] - counts[a] * WEIGHT[a]).map((state) => this.words.state(state, counts[state]));
    if (!exceptions.length) return whole;
    const fits = (text) => this.g.measureText(text).width <= width;
    let text = fits(`${whole} · ${exceptions[0]}`) ? whole : this.words.number(block.rows.length);
    for (const one of exceptions) { if (!fits(`${text} · ${one}`)) break; text += ` · ${one}`; }
    return text;
  }

  drawOverlay() {
    const { o, overlay } = this;
    o.clearRect(0, 0, overlay.width, overlay.height);
    if (!this.cell) return;
    for (const [row, colour, width] of [[this.over, this.colours.text2, 1], [this.focus, this.colours.focus, 2]]) {
      const box = this.boxOf(row);
      if (!box) continue;
      o.strokeStyle = colour;
      o.lineWidth = width * this.ratio;
      const out = o.lineWidth / 2 + this.ratio;
      o.strokeRect(box.x - out, box.y - out, box.size + 2 * out, box.size + 2 * out);
    }
  }

  // Where a row's cell stands on the canvas (device pixels), or null.
  boxOf(row) {
    if (row < 0 || !(this.cellX?.[row] === this.cellX?.[row])) return null;
    return { x: Math.round(this.cellX[row] * this.z + this.x), y: Math.round(this.cellY[row] * this.z + this.y), size: this.#size() };
  }

  // The row under a point given in CSS pixels of the canvas, or -1.
  rowAt(cssX, cssY) {
    if (!this.cell) return -1;
    const x = (cssX * this.ratio - this.x) / this.z, y = (cssY * this.ratio - this.y) / this.z;
    for (const { block, x: left, y: top, per } of this.plan.places) {
      const column = Math.floor((x - left) / this.cell), line = Math.floor((y - top - HEAD * this.ratio) / this.cell);
      if (column < 0 || column >= per || line < 0) continue;
      const k = line * per + column;
      if (k < block.rows.length) return block.rows[k];
    }
    return -1;
  }

  // Arrow keys: the neighbour in the block, else the nearest cell in that direction.
  neighbour(row, dx, dy) {
    const k = this.at.get(row);
    if (k === undefined) return this.order[0] ?? -1;
    const block = this.plan.places.find((place) => place.block.regions.has(this.store.region[row]));
    const i = block.block.rows.indexOf(row), next = i + dx + dy * block.per;
    const sameLine = Math.floor(next / block.per) === Math.floor(i / block.per);
    if (next >= 0 && next < block.block.rows.length && (dy || sameLine)) return block.block.rows[next];
    let best = -1, nearest = Infinity;
    for (const other of this.order) {
      const ax = this.cellX[other] - this.cellX[row], ay = this.cellY[other] - this.cellY[row];
      const along = ax * dx + ay * dy, across = Math.abs(ax * dy) + Math.abs(ay * dx);
      if (along <= 0) continue;
      const distance = along + 3 * across;
      if (distance < nearest) { nearest = distance; best = other; }
    }
    return best < 0 ? row : best;
  }

  // Zoom by `factor` about a point (device pixels; the middle without one).
  zoom(factor, px = this.canvas.width / 2, py = this.canvas.height / 2) {
    const z = Math.min(LARGEST_ZOOM, Math.max(1, this.z * factor));
    this.x = px - (px - this.x) * (z / this.z);
    this.y = py - (py - this.y) * (z / this.z);
    this.z = z;
    this.clampPan();
  }

  // The drawing always covers the canvas.
  clampPan() {
    if (!this.extent) return;
    this.x = Math.min(0, Math.max(this.canvas.width - this.extent.width * this.z, this.x));
    this.y = Math.min(0, Math.max(this.canvas.height - this.extent.height * this.z, this.y));
  }

  // Moves the view so that a row's cell is inside.
  reveal(row) {
    const box = this.boxOf(row);
    if (!box) return false;
    const margin = 2 * box.size;
    const dx = Math.max(0, margin - box.x) - Math.max(0, box.x + box.size + margin - this.canvas.width);
    const dy = Math.max(0, margin - box.y) - Math.max(0, box.y + box.size + margin - this.canvas.height);
    if (!dx && !dy) return false;
    this.x += dx;
    this.y += dy;
    const before = [this.x, this.y];
    this.clampPan();
    return dx !== 0 || dy !== 0 || before[0] !== this.x;
  }
}
export { ZOOM_STEP };
