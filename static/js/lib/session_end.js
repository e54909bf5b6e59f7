// Says two minutes ahead that the sign-in ends, and renews it when asked. Other tabs may have renewed it, so the server is asked first.
import { duration } from "./times.js";

const WARN = 120;
const dialog = document.getElementById("session-end");

if (dialog && dialog.dataset.left !== "") {
  const title = document.getElementById("session-end-title");
  const text = document.getElementById("session-end-text");
  const stay = document.getElementById("session-end-stay");
  const again = document.getElementById("session-end-again");
  const token = dialog.querySelector("[name=csrfmiddlewaretoken]").value;
  let endsAt = Date.now() + Number(dialog.dataset.left) * 1000;
  let timer = null, shown = "", last = false;

  const left = () => Math.max(0, Math.round((endsAt - Date.now()) / 1000));

  function show(state) {
    if (state !== shown) {
      title.textContent = title.dataset[state === "ended" ? "ended" : "ending"];
      again.hidden = state !== "ended";
      stay.hidden = state !== "ending";
      if (!dialog.open) dialog.showModal();
    }
    text.textContent = text.dataset[state].replace("%s", duration(left()));
    shown = state;
  }
  function hide() {
    if (shown && dialog.open) dialog.close();
    shown = "";
  }
  async function ask(options) {
    const answer = await fetch(dialog.dataset.url, { headers: { Accept: "application/json", "X-CSRFToken": token }, ...options });
    if (answer.status === 401) { endsAt = Date.now(); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    endsAt = Date.now() + found.left * 1000;
    last = found.last;
  }
  async function look(options = {}) {
    clearTimeout(timer);
    if (options.method || left() <= WARN) {
      try { await ask(options); } catch { /* the console is away: what is known here goes on counting */ }
    }
    const seconds = left();
    if (seconds === 0) { show("ended"); return; }
    if (seconds <= WARN) show(last ? "last" : "ending"); else hide();
    timer = setTimeout(look, seconds <= WARN ? 10_000 : Math.min((seconds - WARN) * 1000, 2 ** 30));
  }
  stay.addEventListener("click", () => look({ method: "POST" }));
  document.addEventListener("visibilitychange", () => { if (!document.hidden && shown !== "ended") look(); });
  look();
}
