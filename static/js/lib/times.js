// Keeps relative times right: <span data-age="ISO time">. Once a second at most while young, and only when the tab is shown.
const strings = document.getElementById("strings").dataset;
const say = (word, n) => word.replace("%s", n);

export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  if (d) return h && d < 100 ? `${say(strings.d, d)} ${say(strings.h, h)}` : say(strings.d, d);
  if (h) return m ? `${say(strings.h, h)} ${say(strings.m, m)}` : say(strings.h, h);
  if (m) return s % 60 && m < 10 ? `${say(strings.m, m)} ${say(strings.s, s % 60)}` : say(strings.m, m);
  return say(strings.s, s);
}

// The server's clock, from the page's own time stamp, so that a wrong clock on this machine does not turn into a wrong age.
const stamp = Date.parse(document.documentElement.dataset.now ?? "");
const offset = Number.isNaN(stamp) ? 0 : stamp - Date.now();
export const serverNow = () => Date.now() + offset;

export function refreshAges() {
  for (const item of document.querySelectorAll("[data-age]")) {
    const text = duration((serverNow() - Date.parse(item.dataset.age)) / 1000);
    if (item.textContent !== text) item.textContent = text;
  }
}
setInterval(() => { if (!document.hidden) refreshAges(); }, 1000);
