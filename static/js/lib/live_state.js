// live → polling → lost, always named: the chip in the side bar and one banner with since-when and the next try.
import { duration } from "./times.js";
import { say, toast } from "./toasts.js";

const strings = document.getElementById("strings").dataset;
let banner = null;
let shown = "";
let ticking = null;

// Nothing is sent while the console does not answer: what was typed stays.
document.addEventListener("submit", (event) => {
  if (!document.documentElement.hasAttribute("data-disconnected") || event.target.method !== "post") return;
  event.preventDefault();
  event.stopImmediatePropagation();
  toast(strings.offline, "error");
}, true);

export function showLiveState({ state, since, nextTry, reason }) {
  const chip = document.getElementById("live-state");
  const word = { live: strings.live, polling: strings.polling, lost: strings.lost, paused: strings.paused }[state] ?? strings.connecting;
  if (chip) { chip.hidden = false; chip.dataset.state = state; if (chip.textContent !== word) chip.textContent = word; }
  document.documentElement.toggleAttribute("data-disconnected", state === "lost");
  clearInterval(ticking);
  if (state === "polling" || state === "lost") {
    if (!banner) {
      banner = document.createElement("div");
      banner.className = "banner";
      banner.append(document.createElement("span"));
      document.getElementById("banners").append(banner);
    }
    banner.dataset.kind = state === "lost" ? "lost" : "warn";
    const draw = () => {
      const age = duration((Date.now() - since) / 1000);
      const next = nextTry ? ` · ${strings.nextTry.replace("%s", duration((nextTry - Date.now()) / 1000))}` : "";
      banner.firstChild.textContent = `${(state === "lost" ? strings.lostText : strings.pollingText).replace("%s", age)}${reason ? ` (${reason})` : ""}${next}`;
    };
    draw();
    ticking = setInterval(draw, 1000);
  } else {
    banner?.remove();
    banner = null;
  }
  if (state !== shown && ["live", "polling", "lost"].includes(state) && shown) say(word);
  shown = state;
}
