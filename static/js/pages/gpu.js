// The GPU page: the clock range by key, and the undo of the last 10 seconds.
import { onKey } from "../lib/keys.js";
import { toast } from "../lib/toasts.js";

const strings = document.getElementById("strings").dataset;

onKey("c", () => {
  const dialog = document.getElementById("clock-dialog");
  if (!dialog) { document.getElementById("clock-button")?.focus(); return true; }
  dialog.showModal();
  dialog.querySelector("input[type=number]")?.focus();
  return true;
});

const undo = document.getElementById("undo");
if (undo) {
  const until = performance.now() + Number(undo.dataset.seconds) * 1000;
  const left = () => Math.ceil((until - performance.now()) / 1000);
  const notice = toast(undo.dataset.text, "success", { action: { label: strings.undoLeft.replace("%s", left()), run: () => undo.requestSubmit() }, seconds: 0 });
  const button = notice.querySelector(".btn");
  const ticking = setInterval(() => {
    if (left() > 0) { button.textContent = strings.undoLeft.replace("%s", left()); return; }
    clearInterval(ticking);
    notice.remove();
  }, 250);
}
