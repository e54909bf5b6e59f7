// Says two minutes ahead that the sign-in ends, and renews it when asked. Other tabs may have renewed it, so the server is asked first.
// Whoever hears from the server that nobody is signed in any more tells by the event "session:ended" on the document.
import { duration } from "./times.js";

const WARN = 120, AGAIN = 10; // seconds
const dialog = document.getElementById("session-end");

if (dialog) {
  const title = document.getElementById("session-end-title");
  const text = document.getElementById("session-end-text");
  const stay = document.getElementById("session-end-stay");
  const again = document.getElementById("session-end-again");
  const tokens = () => document.querySelectorAll("[name=csrfmiddlewaretoken]");
  let endsAt = Date.now() + Number(dialog.dataset.left) * 1000;
  let timer = null, shown = "", last = false;

  const left = () => Math.max(0, Math.round((endsAt - Date.now()) / 1000));

  function show(state) {
    text.textContent = text.dataset[state].replace("%s", duration(left()));
    if (state === shown) return;
    shown = state;
    title.textContent = title.dataset[state === "ended" ? "ended" : "ending"];
    again.hidden = state !== "ended";
    stay.hidden = state !== "ending";
    if (!dialog.open) dialog.showModal();
    ({ ended: again, ending: stay }[state] ?? dialog.querySelector("[data-close]")).focus();
  }
  function hide() {
    if (shown && dialog.open) dialog.close();
    shown = "";
  }
  async function ask(method) {
    const answer = await fetch(dialog.dataset.url, { method, headers: { Accept: "application/json", "X-CSRFToken": tokens()[0].value }, cache: "no-store" });
    if (answer.status === 401) { endsAt = 0; return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    endsAt = found.left === null ? Infinity : Date.now() + found.left * 1000;
    last = found.last;
    for (const token of tokens()) token.value = found.csrf; // who signed in again in another tab can still send what stands here
  }
  async function look({ method = "GET", certain = false } = {}) {
    clearTimeout(timer);
    if (certain || left() <= WARN) {
      try { await ask(method); } catch { /* the console is away: what is known here goes on counting */ }
    }
    const seconds = left();
    if (seconds === 0) { show("ended"); return; }
    if (seconds <= WARN) show(last ? "last" : "ending"); else hide();
    timer = setTimeout(look, Math.min(seconds <= WARN ? Math.min(AGAIN, seconds) * 1000 : (seconds - WARN) * 1000, 2 ** 30));
  }
  stay.addEventListener("click", () => look({ method: "POST", certain: true }));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  document.addEventListener("session:ended", () => { if (shown !== "ended") look({ certain: true }); });
  look();
}
