// The standard list: rows by keyboard, selection ("these rows" or "all that match"), suggestions while typing.
import { onKey } from "./keys.js";

const strings = document.getElementById("strings").dataset;
const list = () => document.getElementById("list");
const rows = () => [...document.querySelectorAll("#list tbody tr[data-href], .keyed tbody tr[data-href], #results tbody tr[data-href]")];
let at = -1;

function move(step) {
  const all = rows();
  if (!all.length) return false;
  at = Math.max(0, Math.min(all.length - 1, at + step));
  all.forEach((row, i) => row.classList.toggle("at", i === at));
  all[at].scrollIntoView({ block: "nearest" });
  (all[at].querySelector("td:not(.check) a") ?? all[at]).focus({ preventScroll: true });
  return true;
}
onKey("j", () => move(at < 0 ? 1 : 1));
onKey("k", () => move(-1));
onKey("Enter", (event) => {
  if (event.target.closest("a, button, summary, input")) return false;
  const row = rows()[at];
  if (!row) return false;
  location.assign(row.dataset.href);
  return true;
});
onKey("f", () => {
  const menu = document.getElementById("filters");
  if (!menu) return false;
  menu.open = true;
  menu.querySelector("input, select")?.focus();
  return true;
});

// Selection: ids of this page's rows, or everything that the filters match. Kept for this address, so that Back finds it.
const key = () => `selection:${location.pathname}${location.search}`;
let all = false;
let picked = new Set();

function keep() { try { sessionStorage.setItem(key(), JSON.stringify({ all, picked: [...picked] })); } catch { /* private mode: the selection lives as long as the page */ } }
function recall() {
  let kept = null;
  try { kept = JSON.parse(sessionStorage.getItem(key()) ?? "null"); } catch { kept = null; }
  all = kept?.all ?? false;
  picked = new Set(kept?.picked ?? []);
}
function show() {
  const bar = document.getElementById("bulk");
  if (!bar) return;
  const boxes = [...document.querySelectorAll("#list .pick")];
  for (const box of boxes) { box.checked = all || picked.has(box.value); box.closest("tr").setAttribute("aria-selected", String(box.checked)); }
  const whole = document.getElementById("pick-all");
  if (whole) { whole.checked = boxes.length > 0 && boxes.every((box) => box.checked); whole.indeterminate = !whole.checked && boxes.some((box) => box.checked); }
  bar.hidden = !all && picked.size === 0;
  document.getElementById("bulk-count").textContent = bar.hidden ? "" : all ? strings.allSelected.replace("%s", list().dataset.countText) : strings.selected.replace("%s", picked.size);
  document.getElementById("bulk-all").hidden = all;
  const command = document.getElementById("bulk-command");
  if (command) {
    const query = new URLSearchParams(list().dataset.query.slice(1));
    for (const name of ["ordering", "page", "page_size"]) query.delete(name);
    if (!all) for (const id of picked) query.append("id", id);
    command.href = `${command.dataset.base}?${new URLSearchParams({ list: command.dataset.list, query: query.toString(), expected: all && Number(list().dataset.count) > 10_000 ? "" : String(all ? list().dataset.count : picked.size) })}`;
  }
  const download = document.getElementById("bulk-export");
  if (download) {
    const query = new URLSearchParams(list().dataset.query.slice(1));
    query.set("format", download.dataset.format);
    if (!all) for (const id of picked) query.append("id", id);
    download.href = `${download.dataset.base}?${query}`;
  }
}
const changed = () => { keep(); show(); };
document.addEventListener("change", (event) => {
  if (event.target.matches("#list .pick")) {
    if (all) { all = false; picked = new Set([...document.querySelectorAll("#list .pick")].map((box) => box.value)); }
    if (event.target.checked) picked.add(event.target.value); else picked.delete(event.target.value);
    changed();
  } else if (event.target.id === "pick-all") {
    all = false;
    picked = new Set(event.target.checked ? [...document.querySelectorAll("#list .pick")].map((box) => box.value) : []);
    changed();
  }
});
document.addEventListener("click", (event) => {
  if (event.target.closest("#bulk-all")) { all = true; changed(); document.getElementById("bulk-none").focus(); }
  if (event.target.closest("#bulk-none")) clear();
});
function clear() { if (!all && !picked.size) return; all = false; picked.clear(); changed(); }
onKey("x", () => {
  const box = rows()[at]?.querySelector(".pick");
  if (!box) return false;
  box.click();
  return true;
});
onKey("X", () => { if (!list()) return false; all = true; changed(); return true; });
onKey("Escape", clear);
export const hasSelection = () => all || picked.size > 0;

document.body.addEventListener("htmx:afterSettle", (event) => { if (event.target.id === "list" || event.target.id === "results") { at = -1; recall(); show(); } });
document.addEventListener("keydown", (event) => { if (event.key === "ArrowDown" && event.target.matches("[data-search]") && rows().length) { event.preventDefault(); at = -1; move(1); } });
if (list()) { recall(); show(); }

// Search as you type in filter fields of kinds that are too many for a choice: <input data-suggest="site"> gets a <datalist>.
let timer = null;
document.addEventListener("input", (event) => {
  const field = event.target.closest("input[data-suggest]");
  if (!field) return;
  clearTimeout(timer);
  timer = setTimeout(async () => {
    const before = field.value.slice(0, field.value.lastIndexOf(",") + 1);
    const text = field.value.slice(before.length).trim();
    if (!text) return;
    const response = await fetch(`/search/suggest?${new URLSearchParams({ q: text, kind: field.dataset.suggest })}`, { headers: { Accept: "application/json" } }).catch(() => null);
    if (!response?.ok) return;
    let options = document.getElementById(`${field.id}-options`);
    if (!options) { options = document.createElement("datalist"); options.id = `${field.id}-options`; field.after(options); field.setAttribute("list", options.id); }
    options.replaceChildren(...(await response.json()).results.map((row) => {
      const option = document.createElement("option");
      option.value = before + (before ? " " : "") + row.key;
      option.label = `${row.label} ${row.hint}`;
      return option;
    }));
  }, 150);
});
