// The keyboard. Single letters can be switched off in the profile, do nothing while one types, and never complete an act that needs a confirmation.
// Pages add their own: onKey("c", () => …).
const letters = document.body.dataset.letterKeys === "on";
const own = new Map();
let chord = 0;

export function onKey(key, run) { own.set(key, run); }

const typing = (element) => element.closest?.("input:not([type=checkbox]):not([type=radio]):not([type=button]), textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing) return;
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    document.dispatchEvent(new CustomEvent("palette:open"));
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const modal = document.querySelector("dialog[open]");
  if (event.key === "Escape" && !modal) { if (typing(event.target)) event.target.blur(); own.get("Escape")?.(event); return; }
  if (!letters || modal || typing(event.target)) return;
  if (chord && performance.now() - chord < 1500) {
    chord = 0;
    const target = document.querySelector(`.nav [data-chord="${CSS.escape(event.key)}"]`);
    if (target) { event.preventDefault(); location.assign(target.href); }
    return;
  }
  if (event.key === "g") { chord = performance.now(); return; }
  if (event.key === "?") { event.preventDefault(); document.getElementById("keys")?.showModal(); return; }
  if (event.key === "/") {
    event.preventDefault();
    const quick = document.querySelector("[data-search]");
    if (quick) { quick.focus(); quick.select(); } else document.dispatchEvent(new CustomEvent("palette:open"));
    return;
  }
  const run = own.get(event.key);
  if (run && run(event) !== false) event.preventDefault();
});
