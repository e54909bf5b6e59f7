// ctrl/cmd+k: go to a page, find an object. A combobox over one list; the server searches, at most 20 rows.
const dialog = document.getElementById("palette");
if (dialog) {
  const strings = document.getElementById("strings").dataset;
  const input = dialog.querySelector("input");
  const list = dialog.querySelector("ul");
  const none = dialog.querySelector(".none");
  const pages = () => [...document.querySelectorAll(".nav nav a")].map((a) => ({ kind: strings.page, label: a.textContent.trim(), url: a.href, hint: a.dataset.chord ? `g ${a.dataset.chord}` : "" }));
  const acts = () => [...document.querySelectorAll("[data-act]")].filter((b) => !b.disabled && b.getAttribute("aria-disabled") !== "true").map((b) => ({ kind: "", label: b.dataset.act, hint: "", run: () => b.click() }));
  let items = [];
  let at = 0;
  let asked = 0;
  let timer = null;

  const choose = (index) => {
    at = Math.max(0, Math.min(items.length - 1, index));
    [...list.children].forEach((row, i) => row.setAttribute("aria-selected", String(i === at)));
    const row = list.children[at];
    if (row) { input.setAttribute("aria-activedescendant", row.id); row.scrollIntoView({ block: "nearest" }); } else input.removeAttribute("aria-activedescendant");
  };
  const draw = (rows) => {
    items = rows;
    list.replaceChildren(...rows.map((item, i) => {
      const row = document.createElement("li");
      row.id = `palette-${i}`;
      row.setAttribute("role", "option");
      const kind = document.createElement("span"); kind.className = "kind"; kind.textContent = item.kind;
      const label = document.createElement("span"); label.textContent = item.label;
      const hint = document.createElement("span"); hint.className = "hint"; hint.textContent = item.hint ?? "";
      row.append(kind, label, hint);
      row.addEventListener("click", () => go(item));
      return row;
    }));
    none.hidden = rows.length > 0;
    choose(0);
  };
  const go = (item) => { if (!item) return; dialog.close(); if (item.run) item.run(); else location.assign(item.url); };
  const look = async () => {
    const text = input.value.trim();
    const turn = ++asked;
    const known = [...acts(), ...pages()].filter((item) => item.label.toLowerCase().includes(text.toLowerCase()));
    if (!text || !dialog.dataset.suggest) { draw(known); return; }
    const response = await fetch(`${dialog.dataset.suggest}?${new URLSearchParams({ q: text })}`, { headers: { Accept: "application/json" } }).catch(() => null);
    const found = response?.ok ? (await response.json()).results : [];
    if (turn !== asked) return;
    draw([...known, ...found.map((row) => ({ ...row, kind: strings[row.kind] ?? row.kind })), { kind: strings.search, label: strings.searchFor.replace("%s", text), url: `/search?${new URLSearchParams({ q: text })}` }]);
  };
  const open = () => { if (dialog.open) return; input.value = ""; draw([...acts(), ...pages()]); dialog.showModal(); input.focus(); };

  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(look, 120); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(at + 1);
    else if (event.key === "ArrowUp") choose(at - 1);
    else if (event.key === "Enter") go(items[at]);
    else return;
    event.preventDefault();
  });
  document.addEventListener("palette:open", open);
  for (const button of document.querySelectorAll("[data-open-palette]")) button.addEventListener("click", open);
}
