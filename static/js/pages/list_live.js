// The list of sites: states and numbers change in place; rows never move. Where a change would move or hide rows, "n changes · Apply" offers the new order.
import { FleetStore, NO_UTILIZATION, STATES } from "../lib/fleet_store.js";
import { Live } from "../lib/live.js";
import { setField } from "../lib/live_page.js";
import { showLiveState } from "../lib/live_state.js";
import { refreshAges } from "../lib/times.js";

const strings = document.getElementById("strings").dataset;
const SVG = "http://www.w3.org/2000/svg";
let store = null;
let live = null;
let moved = new Set();

function stateCell(cell, word) {
  const state = cell.querySelector("[data-state]");
  if (!state || state.dataset.state === word) return false;
  state.dataset.state = word;
  const mark = document.createElementNS(SVG, "svg");
  mark.setAttribute("class", `mark mark-${word}`);
  mark.setAttribute("viewBox", "0 0 12 12");
  mark.setAttribute("aria-hidden", "true");
  mark.appendChild(document.createElementNS(SVG, "use")).setAttribute("href", `#mark-${word}`);
  state.replaceChildren(mark, strings[`state${word[0].toUpperCase()}${word.slice(1)}`]);
  return true;
}

// What the row said of the old state is no longer so: since when is known, why comes with the next look at the server.
function outdated(id, since) {
  const part = (name) => document.querySelector(`#list [data-field="${id}:${name}"]`);
  const age = part("since")?.querySelector("[data-age]");
  if (age && since === since) {
    const at = new Date(since * 1000).toISOString();
    age.dataset.age = at;
    Object.assign(age.closest("time"), { dateTime: at, title: `${at.slice(0, 19).replace("T", " ")} UTC` });
  }
  const why = part("why");
  if (why) { why.textContent = strings.justChanged; why.title = ""; why.className = "faint"; }
  refreshAges();
}

function draw(changed) {
  for (const i of changed) {
    const id = store.ids[i];
    const cell = document.querySelector(`#list [data-field="${id}:state"]`);
    if (!cell) continue;
    if (stateCell(cell, STATES[store.state[i]])) { moved.add(id); outdated(id, store.since[i]); }
    const numbers = { use: store.utilization[i] === NO_UTILIZATION ? null : store.utilization[i] / 10_000, power: Number.isNaN(store.power[i]) ? null : store.power[i] };
    for (const [name, value] of Object.entries(numbers)) {
      const element = document.querySelector(`#list [data-field="${id}:${name}"]`);
      if (element) setField(element, value);
    }
  }
  const offer = document.getElementById("list-changes");
  if (!offer) return;
  offer.hidden = moved.size === 0;
  if (moved.size) offer.querySelector("span").textContent = strings.changes.replace("%s", moved.size);
}

function begin() {
  const rows = [...document.querySelectorAll("#list tbody tr[data-area]")];
  moved = new Set();
  draw([]);
  const ids = rows.map((row) => Number(row.querySelector(".pick").value));
  const areas = [...new Set(rows.map((row) => Number(row.dataset.area)))].sort();
  store ??= new FleetStore();
  store.setLayout({ areas: [], regions: [], sites: { id: ids, region: ids.map(() => 0), code: [], name: [], lat: [], lon: [], feed: [] } });
  if (!areas.length) return;
  if (live) {
    live.areas = areas;
    if (live.socket?.readyState === WebSocket.OPEN) live.socket.send(JSON.stringify({ op: "subscribe", areas }));
    return;
  }
  live = new Live({
    store,
    areas,
    urls: { socket: `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live/`, frames: "/live/frames" },
    onFrames: draw,
    onState: showLiveState,
  });
}
document.body.addEventListener("htmx:afterSettle", (event) => { if (event.target.id === "list") begin(); });
document.addEventListener("click", (event) => {
  if (event.target.closest("#list-changes button")) window.htmx.ajax("GET", location.pathname + location.search, { target: "#list", select: "#list", swap: "morph:outerHTML" });
});
begin();
