// Short notices, and the polite live region (at most one announcement in 5 s; the newest wins).
const box = document.getElementById("toasts");
const region = document.getElementById("announce");
const strings = document.getElementById("strings").dataset;

export function toast(text, kind = "", { action = null, seconds = 6 } = {}) {
  const item = document.createElement("div");
  item.className = `toast ${kind}`;
  item.setAttribute("role", kind === "error" ? "alert" : "status");
  const words = document.createElement("span");
  words.className = "grow";
  words.textContent = text;
  item.append(words);
  if (action) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "btn";
    button.textContent = action.label;
    button.addEventListener("click", () => { item.remove(); action.run(); });
    item.append(button);
  }
  const close = document.createElement("button");
  close.type = "button";
  close.className = "icon-btn";
  close.dataset.dismiss = "";
  close.setAttribute("aria-label", strings.close);
  close.textContent = "×";
  item.append(close);
  box.append(item);
  if (seconds) setTimeout(() => { if (!item.matches(":hover, :focus-within")) item.remove(); }, seconds * 1000);
  return item;
}

box.addEventListener("click", (event) => {
  if (event.target.closest("[data-dismiss]")) event.target.closest(".toast").remove();
});

let waiting = null;
let last = -Infinity;
export function say(text) {
  const wait = last + 5000 - performance.now();
  clearTimeout(waiting);
  waiting = setTimeout(() => { last = performance.now(); region.textContent = text; }, Math.max(0, wait));
}
