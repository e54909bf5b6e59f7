// Pages of one object: values change in place (data-field), parts are fetched again when something happened (data-live-area), all right without it.
import { Live } from "./live.js";
import { showLiveState } from "./live_state.js";
import { duration, refreshAges } from "./times.js";
import { say } from "./toasts.js";

const strings = document.getElementById("strings").dataset;
const NBSP = "\u00a0";
const whole = new Intl.NumberFormat(document.documentElement.lang, { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat(document.documentElement.lang, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const thousandth = new Intl.NumberFormat(document.documentElement.lang, { minimumFractionDigits: 3, maximumFractionDigits: 3 });
const FORMATS = {
  celsius: (v) => `${whole.format(v)}${NBSP}°C`,
  megahertz: (v) => `${whole.format(v / 1e6)}${NBSP}MHz`,
  watts: (v) => Math.abs(v) >= 10_000 ? `${tenth.format(v / 1000)}${NBSP}kW` : `${whole.format(v)}${NBSP}W`,
  percent: (v) => `${whole.format(v * 100)}${NBSP}%`,
  gibibytes: (v) => `${tenth.format(v / 2 ** 30)}${NBSP}GiB`,
  short: (v) => {
    for (const [limit, scale, sign] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e5, 1e3, "k"]]) if (Math.abs(v) >= limit) return `${tenth.format(v / scale)}${NBSP}${sign}`;
    return (Number.isInteger(v) ? whole : Math.abs(v) < 10 ? thousandth : tenth).format(v);
  },
  number: (v) => whole.format(v),
  seconds: (v) => duration(v),
};
const clamp = (v) => Math.max(0, Math.min(1, v ?? 0));

// One cell: a number with its unit, or a level. A value that is gone says so; it never becomes 0.
export function setField(element, value) {
  const missing = value === null || value === undefined;
  const format = element.dataset.format;
  if (format === "bar") { element.querySelector("rect")?.setAttribute("width", (clamp(value) * 100).toFixed(1)); return; }
  if (format === "level") {
    const rect = element.querySelector("rect");
    rect?.setAttribute("y", (10 - clamp(value) * 10).toFixed(2));
    rect?.setAttribute("height", (clamp(value) * 10).toFixed(2));
    return;
  }
  const text = missing ? strings.notReported : (FORMATS[format] ?? String)(value);
  if (element.textContent.trim() === text) return;
  element.textContent = text;
  element.classList.toggle("not-reported", missing);
}

export function applyDetail(message) {
  for (const rows of [message.gpus, message.slices]) for (const [key, fields] of Object.entries(rows ?? {})) for (const [field, value] of Object.entries(fields)) {
    for (const element of document.querySelectorAll(`[data-field="${CSS.escape(`${key}:${field}`)}"]`)) setField(element, value);
  }
  if (message.at) for (const element of document.querySelectorAll("[data-measured]")) {
    if (element.dataset.measured && !(element.dataset.measured in (message.gpus ?? {}))) continue;
    element.dataset.age = new Date(message.at * 1000).toISOString();
    element.closest(".stale")?.classList.remove("stale");
  }
  refreshAges();
}

let fetching = false;
let again = false;
export async function refreshAreas() {
  if (fetching) { again = true; return; }
  fetching = true;
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html", "X-Automatic": "1" }, redirect: "error" });
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const area of document.querySelectorAll("[data-live-area]")) {
      const next = fresh.getElementById(area.id);
      if (next && !area.contains(document.activeElement?.closest("form"))) window.Idiomorph.morph(area, next, { ignoreActiveValue: true });
    }
    refreshAges();
  } catch { /* the banner already says that the console does not answer */ } finally {
    fetching = false;
    if (again) { again = false; setTimeout(refreshAreas, 1000); }
  }
}

const page = document.querySelector("[data-watch-site]");
if (page) {
  const { watchSite, watchKeys } = page.dataset;
  const keys = new Set((watchKeys ?? "").split(" ").filter(Boolean));
  let polling = null;
  let soon = null;
  const live = new Live({
    urls: { socket: `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live/`, frames: "/live/frames" },
    onState: (state) => {
      showLiveState(state);
      clearInterval(polling);
      if (state.state === "polling") polling = setInterval(refreshAreas, 5000);
    },
    onHello: () => refreshAreas(),
    onDetail: (message) => { if (message.site === watchSite) applyDetail(message); },
    onNotice: (message) => {
      if (message.site !== watchSite && !keys.has(message.key)) return;
      clearTimeout(soon);
      soon = setTimeout(() => { refreshAreas(); if (message.text) say(message.text); }, 300);
    },
  });
  live.watch(watchSite);
}
