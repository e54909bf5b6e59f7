// One socket per tab: sequence, resync, back-off with jitter; live → polling → lost, always named.
//
// new Live({ store, areas, urls, onFrames, onState, onNotice, onDetail, onHello, neverPause })
//   store      FleetStore, or null for a page that needs no frames
//   areas      "all", or a list of area ids
//   urls       { socket, frames }
//   onState    ({ state: "connecting" | "live" | "polling" | "lost" | "paused", since, nextTry, reason }) => …
const FIRST_RETRY = 1000, LONGEST_RETRY = 30_000;
const POLL = 2000;
const QUIET_WITH_FRAMES = 4500; // frames come each second: sooner than 5 s we know that the socket is dead
const QUIET_WITH_BEATS = 8000;
const HIDDEN = 60_000;
const RESYNC = 3000;

export class Live {
  constructor({ store = null, areas = "all", urls, onFrames = () => {}, onState = () => {}, onNotice = () => {}, onDetail = () => {}, onHello = () => {}, neverPause = false }) {
    Object.assign(this, { store, areas, urls, onFrames, onState, onNotice, onDetail, onHello });
    this.watched = new Set();
    this.tries = 0;
    this.state = { state: "connecting", since: Date.now(), nextTry: null, reason: "" };
    this.clockOffset = 0; // server's clock minus ours, milliseconds
    this.ended = false;
    this.connect();
    this.watchdog = setInterval(() => this.#checkQuiet(), 500);
    if (!neverPause) document.addEventListener("visibilitychange", () => this.#visibility());
    addEventListener("online", () => { if (!this.socket) this.#retrySoon(0); });
    addEventListener("pagehide", () => this.socket?.close());
    addEventListener("pageshow", (event) => { if (event.persisted) this.#retrySoon(0); });
  }

  now() { return (Date.now() + this.clockOffset) / 1000; }

  watch(code) { this.watched.add(code); this.#send({ op: "watch", site: code }); }
  unwatch(code) { this.watched.delete(code); this.#send({ op: "unwatch", site: code }); }

  connect() {
    clearTimeout(this.retry);
    if (this.ended || this.paused) return;
    this.tries++;
    this.heardFrames = false;
    this.heardAt = performance.now();
    const socket = this.socket = new WebSocket(this.urls.socket);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.heardAt = performance.now();
      this.#send({ op: "subscribe", areas: this.store ? this.areas : [] });
      for (const code of this.watched) this.#send({ op: "watch", site: code });
    };
    socket.onmessage = (event) => { if (this.socket === socket) this.#message(event.data); };
    socket.onclose = (event) => { if (this.socket === socket) this.#closed(event); };
  }

  #send(content) { if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(content)); }

  #message(data) {
    this.heardAt = performance.now();
    if (typeof data !== "string") {
      this.heardFrames = true;
      this.#frames(data);
      return;
    }
    const message = JSON.parse(data);
    if (message.op === "hello") {
      this.tries = 0;
      clearInterval(this.poller);
      this.poller = null;
      this.store?.keepAreas(message.areas);
      this.#become("live");
      this.onHello(message);
    } else if (message.op === "beat") {
      this.clockOffset = message.at * 1000 - Date.now();
      if (this.store) for (const area of this.store.behind(message.seq)) this.#resync(area);
    } else if (message.op === "notice") {
      if (message.type === "job") import("./job_notices.js").then(({ tellJob }) => tellJob(message));
      this.onNotice(message);
    }
    else if (message.op === "detail") this.onDetail(message);
    else if (message.op === "bye") this.lastWord = message.reason;
  }

  #frames(buffer) {
    const { changed, gaps } = this.store ? this.store.apply(buffer) : { changed: [], gaps: [] };
    for (const area of gaps) this.#resync(area);
    this.onFrames(changed);
  }

  // If no snapshot comes, the next beat or frame asks again.
  #resync(area) {
    this.#send({ op: "resync", area });
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.store.giveUpWaiting(), RESYNC);
  }

  #closed(event) {
    this.socket = null;
    if (event.code === 4401 || event.code === 4403) { this.#end(this.lastWord || "signed out"); return; }
    if (this.ended || this.paused) return;
    this.#startPolling();
    const wait = Math.min(LONGEST_RETRY, FIRST_RETRY * 2 ** Math.min(this.tries - 1, 10)) * (0.5 + Math.random());
    this.#retrySoon(wait);
  }

  #retrySoon(wait) {
    clearTimeout(this.retry);
    this.nextTry = Date.now() + wait;
    this.retry = setTimeout(() => this.connect(), wait);
    if (this.state.state !== "live") this.#become(this.state.state);
  }

  #checkQuiet() {
    if (!this.socket || this.ended) return;
    if (performance.now() - this.heardAt > (this.heardFrames ? QUIET_WITH_FRAMES : QUIET_WITH_BEATS)) {
      const socket = this.socket;
      this.socket = null; // a dead peer may never answer the close
      socket.onclose = socket.onmessage = null;
      socket.close();
      this.#closed({ code: 1006 });
    }
  }

  #startPolling() {
    if (this.poller) return;
    this.#become(this.state.state === "live" || this.state.state === "connecting" ? "polling" : this.state.state);
    this.#poll();
    this.poller = setInterval(() => this.#poll(), POLL);
  }

  async #poll() {
    if (this.polling) return;
    this.polling = true;
    try {
      const query = new URLSearchParams(this.store ? [] : [["area", "none"]]); // without a store: only whether the console answers
      if (this.store && this.areas !== "all") for (const area of this.areas) query.append("area", area);
      if (this.store && this.areas === "all" && this.store.areas.size) for (const area of this.store.areas.keys()) query.append("area", area);
      if (this.store) for (const area of query.getAll("area")) { const known = this.store.areas.get(Number(area)); query.append("seq", known && !known.waiting ? known.seq : 0); }
      const response = await fetch(`${this.urls.frames}?${query}`, { signal: AbortSignal.timeout(8000), redirect: "error" });
      if (response.status === 401 || response.status === 404) { this.#end("signed out"); return; }
      if (!response.ok) throw new Error(String(response.status));
      const date = Date.parse(response.headers.get("Date") ?? "");
      if (!Number.isNaN(date)) this.clockOffset = date - Date.now();
      const buffer = await response.arrayBuffer();
      if (this.state.state === "live" || this.ended) return;
      this.#become("polling");
      const { changed } = this.store ? this.store.apply(buffer) : { changed: [] };
      this.onFrames(changed);
    } catch {
      if (this.state.state !== "live") this.#become("lost");
    } finally {
      this.polling = false;
    }
  }

  #visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        this.paused = true;
        clearInterval(this.poller);
        clearTimeout(this.retry);
        this.poller = null;
        this.socket?.close();
        this.socket = null;
        this.#become("paused");
      }, HIDDEN);
    } else if (this.paused) {
      this.paused = false;
      this.#become("connecting");
      this.connect();
    }
  }

  #end(reason) {
    this.ended = true;
    clearInterval(this.poller);
    clearInterval(this.watchdog);
    clearTimeout(this.retry);
    this.#become("lost", reason);
    document.dispatchEvent(new CustomEvent("session:ended"));
  }

  #become(state, reason = "") {
    const since = this.state.state === state ? this.state.since : Date.now();
    this.state = { state, since, nextTry: state === "live" || this.ended ? null : this.nextTry ?? null, reason };
    this.onState(this.state);
  }
}
