// The overview: its panels are fetched again when something happened, and each ten seconds; 1-5 jump to a panel.
import { onKey } from "../lib/keys.js";
import { Live } from "../lib/live.js";
import { showLiveState } from "../lib/live_state.js";
import { refreshAges } from "../lib/times.js";

const page = document.getElementById("overview");
const SOON = 2000, ALWAYS = 10_000;
let due = performance.now() + ALWAYS, busy = false;

async function refresh() {
  busy = true;
  due = performance.now() + ALWAYS;
  try {
    const response = await fetch(page.dataset.panels, { headers: { "X-Automatic": "1" }, redirect: "error" });
    if (!response.ok) return;
    window.Idiomorph.morph(page, await response.text(), { morphStyle: "innerHTML" });
    refreshAges();
  } catch { /* the banner says that the console does not answer */ } finally { busy = false; }
}
setInterval(() => { if (!busy && !document.hidden && performance.now() > due) refresh(); }, 500);
refreshAges();

new Live({
  urls: { socket: new URL("/live/", location.href.replace(/^http/, "ws")).href, frames: "/live/frames" },
  onState: showLiveState,
  onNotice: () => { due = Math.min(due, performance.now() + SOON); },
});

for (const n of "12345") onKey(n, () => {
  const panel = document.getElementById(`panel-${n}`);
  panel?.focus();
  panel?.scrollIntoView({ block: "nearest" });
  return Boolean(panel);
});
