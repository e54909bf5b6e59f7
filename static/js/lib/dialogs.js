// <dialog> by attributes: data-open-dialog="id" opens, data-close closes; focus goes back to what opened it (the browser does that).
// data-opens-on="m": this letter does the same.
import { onKey } from "./keys.js";

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open-dialog]");
  const opened = opener && opener.getAttribute("aria-disabled") !== "true" ? document.getElementById(opener.dataset.openDialog) : null;
  opened?.showModal();
  opened?.querySelector("input:not([type=hidden]), select, textarea")?.focus();
  if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
  if (event.target.matches("dialog") && event.target.open) event.target.close(); // the backdrop
});
for (const opener of document.querySelectorAll("[data-opens-on]")) {
  const letter = opener.dataset.opensOn;
  onKey(letter, () => {
    const button = document.querySelector(`[data-opens-on="${CSS.escape(letter)}"]`); // the page may have been renewed since
    button?.focus();
    button?.click();
  });
}
for (const dialog of document.querySelectorAll("dialog[data-show]")) dialog.showModal();
