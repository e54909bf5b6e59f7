// Every page: keys, palette, dialogs, toasts, ages of times, lists.
import "./lib/keys.js";
import "./lib/palette.js";
import "./lib/dialogs.js";
import "./lib/lists.js";
import "./lib/times.js";
import "./lib/session_end.js";
import { toast, say } from "./lib/toasts.js";

const strings = document.getElementById("strings").dataset;

document.addEventListener("click", (event) => {
  const toggle = event.target.closest("[data-toggle-nav]");
  if (toggle) {
    const open = document.getElementById("nav").toggleAttribute("data-open");
    toggle.setAttribute("aria-expanded", String(open));
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard.writeText(copy.dataset.copy).then(() => { toast(strings.copied); }, () => { toast(strings.failed, "error"); });
  }
});
// A menu closes when focus or a click leaves it, and gives focus back on escape.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = document.querySelector("details.menu[open]");
  if (menu) { menu.open = false; menu.querySelector("summary").focus(); event.stopPropagation(); }
});
document.body.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status === 401) { document.dispatchEvent(new CustomEvent("session:ended")); return; }
  const id = event.detail.xhr.getResponseHeader("X-Request-ID");
  toast(id ? `${strings.failed} (${id})` : strings.failed, "error");
});
document.body.addEventListener("htmx:sendError", () => toast(strings.offline, "error"));
document.body.addEventListener("htmx:afterSettle", (event) => {
  const spoken = event.target.closest?.("[data-say]") ?? event.target.querySelector?.("[data-say]");
  if (spoken) say(spoken.dataset.say);
});
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" });
for (const field of document.querySelectorAll("[autofocus]")) if (!field.closest("dialog")) field.focus({ preventScroll: true });

// What scrolls sideways and holds nothing that takes focus must itself be reachable by keyboard.
function reachScrollers() {
  for (const wrap of document.querySelectorAll(".table-wrap")) {
    if (wrap.scrollWidth > wrap.clientWidth) { wrap.tabIndex = 0; if (!wrap.hasAttribute("role")) { wrap.setAttribute("role", "region"); wrap.setAttribute("aria-label", wrap.closest("section")?.querySelector("h2")?.textContent.trim() ?? document.title); } }
    else if (wrap.tabIndex === 0) wrap.removeAttribute("tabindex");
  }
}
addEventListener("resize", reachScrollers);
document.body.addEventListener("htmx:afterSettle", reachScrollers);
reachScrollers();
