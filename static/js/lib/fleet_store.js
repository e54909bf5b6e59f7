// The cells of all sites in typed arrays, one row a site in drawing order, fed by binary frames (docs/architecture.md, "Live frames").
// Pure: no DOM, no network. A site that no frame has named yet is unknown, never ok.
export const STATES = ["ok", "degraded", "down", "unknown", "maintenance"];
export const UNKNOWN = 3;
export const STALE = 1, SILENT = 2;
export const NO_UTILIZATION = 65535;
const SNAPSHOT = 1, HEADER = 32;
const padded = (length) => length + ((4 - (length % 4)) % 4);

export function frameLength(count) {
  return HEADER + 4 * count + 2 * padded(count) + 3 * padded(2 * count) + 12 * count;
}

// Reads one frame at `offset` without copying. Throws for anything that is not a whole frame.
export function readFrame(buffer, offset = 0) {
  const view = new DataView(buffer, offset);
  if (view.byteLength < HEADER || view.getUint32(0, false) !== 0x4d484631) throw new RangeError("not a frame");
  const count = view.getUint32(12, true);
  const length = frameLength(count);
  if (view.byteLength < length) throw new RangeError("shorter than its rows");
  let at = offset + HEADER;
  const take = (Type) => { const column = new Type(buffer, at, count); at += padded(count * Type.BYTES_PER_ELEMENT); return column; };
  return {
    kind: view.getUint8(4), area: view.getUint32(8, true), count, madeAt: view.getFloat64(16, true), seq: Number(view.getBigUint64(24, true)), length,
    id: take(Uint32Array), state: take(Uint8Array), flags: take(Uint8Array), reporting: take(Uint16Array), expected: take(Uint16Array),
    utilization: take(Uint16Array), power: take(Float32Array), since: take(Uint32Array), age: take(Float32Array),
  };
}

export class FleetStore {
  constructor() {
    this.areas = new Map(); // area id -> {seq, madeAt, waiting}
    this.strangers = 0; // sites in frames that the layout does not know
    this.newest = NaN; // when the newest frame was made (Unix seconds)
    this.setLayout({ areas: [], regions: [], sites: { id: [], region: [], code: [], name: [], lat: [], lon: [], feed: [] } });
  }

  // Takes the layout; cells of sites that stay keep their values.
  setLayout(layout) {
    const before = this.count ? this : null;
    const old = before && { ...this };
    const n = layout.sites.id.length;
    this.layout = layout;
    this.count = n;
    this.ids = Uint32Array.from(layout.sites.id);
    this.region = Int32Array.from(layout.sites.region);
    this.index = new Map();
    for (let i = 0; i < n; i++) this.index.set(this.ids[i], i);
    this.state = new Uint8Array(n).fill(UNKNOWN);
    this.seen = new Uint8Array(n);
    this.flags = new Uint8Array(n);
    this.reporting = new Uint16Array(n);
    this.expected = new Uint16Array(n);
    this.utilization = new Uint16Array(n).fill(NO_UTILIZATION);
    this.power = new Float32Array(n).fill(NaN);
    this.since = new Float64Array(n).fill(NaN);
    this.contact = new Float64Array(n).fill(NaN);
    this.areaOf = new Uint32Array(n); // the area whose frames name it
    this.strangers = 0;
    if (!old) return;
    for (let i = 0; i < n; i++) {
      const j = old.index.get(this.ids[i]);
      if (j === undefined) continue;
      for (const name of ["state", "seen", "flags", "reporting", "expected", "utilization", "power", "since", "contact", "areaOf"]) this[name][i] = old[name][j];
    }
  }

  // Applies one message of frames. `changed`: rows that were written; `gaps`: areas whose sequence has a hole and that need a snapshot.
  apply(buffer) {
    const changed = [], gaps = [];
    for (let offset = 0; offset < buffer.byteLength;) {
      const frame = readFrame(buffer, offset);
      offset += frame.length;
      const area = this.areas.get(frame.area);
      if (frame.kind === SNAPSHOT) {
        this.areas.set(frame.area, { seq: frame.seq, madeAt: frame.madeAt, waiting: false });
        this.#forgetAbsent(frame, changed);
      } else {
        if (!area || frame.seq > area.seq + 1) {
          if (area && !area.waiting) gaps.push(frame.area);
          if (area) area.waiting = true;
          continue;
        }
        if (frame.seq <= area.seq || area.waiting) continue;
        area.seq = frame.seq;
        area.madeAt = frame.madeAt;
      }
      if (!(frame.madeAt <= this.newest)) this.newest = frame.madeAt;
      this.#write(frame, changed);
    }
    return { changed, gaps };
  }

  // A beat names the newest sequence of each area: areas that are behind without having noticed.
  behind(seqs) {
    const gaps = [];
    for (const [id, seq] of Object.entries(seqs)) {
      const area = this.areas.get(Number(id));
      if (area && area.waiting) continue;
      if (!area || area.seq < seq) {
        if (area) area.waiting = true;
        gaps.push(Number(id));
      }
    }
    return gaps;
  }

  // What was asked for did not come: ask again at the next sign.
  giveUpWaiting() { for (const area of this.areas.values()) area.waiting = false; }

  // Areas that are no longer in our scope.
  keepAreas(ids) {
    const kept = new Set(ids);
    for (const id of [...this.areas.keys()]) if (!kept.has(id)) this.areas.delete(id);
  }

  isReporting(i) { return this.seen[i] === 1 && (this.flags[i] & SILENT) === 0 && this.contact[i] === this.contact[i]; }

  // Totals and, per region, counts by state, reporting, power and feeds. One pass.
  summary() {
    const regions = this.layout.regions.map(() => ({ counts: [0, 0, 0, 0, 0], sites: 0, reporting: 0, power: 0, powerOf: 0, fed: 0, feed: 0, fedOf: 0, oldest: NaN }));
    const total = { counts: [0, 0, 0, 0, 0], sites: this.count, reporting: 0, seen: 0, oldest: NaN };
    const feeds = this.layout.sites.feed;
    for (let i = 0; i < this.count; i++) {
      const region = regions[this.region[i]];
      const state = this.state[i];
      region.sites++;
      region.counts[state]++;
      total.counts[state]++;
      total.seen += this.seen[i];
      if (this.isReporting(i)) { region.reporting++; total.reporting++; }
      else if (this.contact[i] === this.contact[i] && !(this.contact[i] >= total.oldest)) total.oldest = this.contact[i];
      if (this.power[i] !== this.power[i]) continue;
      region.power += this.power[i];
      region.powerOf++;
      if (feeds[i] == null) continue;
      region.fed += this.power[i]; // draw and feed of the same sites
      region.feed += feeds[i];
      region.fedOf++;
    }
    return { total, regions };
  }

  #write(frame, changed) {
    for (let k = 0; k < frame.count; k++) {
      const i = this.index.get(frame.id[k]);
      if (i === undefined) { this.strangers++; continue; }
      this.state[i] = frame.state[k];
      this.seen[i] = 1;
      this.flags[i] = frame.flags[k];
      this.reporting[i] = frame.reporting[k];
      this.expected[i] = frame.expected[k];
      this.utilization[i] = frame.utilization[k];
      this.power[i] = frame.power[k];
      this.since[i] = frame.since[k] || NaN;
      this.contact[i] = frame.madeAt - frame.age[k];
      this.areaOf[i] = frame.area;
      changed.push(i);
    }
  }

  // A snapshot is whole: a site of its area that it does not name is not watched any more.
  #forgetAbsent(frame, changed) {
    const named = new Set(frame.id);
    for (let i = 0; i < this.count; i++) {
      if (!this.seen[i] || this.areaOf[i] !== frame.area || named.has(this.ids[i])) continue;
      this.seen[i] = 0;
      this.state[i] = UNKNOWN;
      this.contact[i] = this.since[i] = this.power[i] = NaN;
      this.utilization[i] = NO_UTILIZATION;
      changed.push(i);
    }
  }
}
