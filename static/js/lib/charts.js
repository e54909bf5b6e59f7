// Charts: one element with data-chart-url each. Loads the plotly bundle only when a chart comes into view,
// gives figures the theme's tokens, offers range, table (v) and link (y), and says why there is no line.

let bundle;
function plotly(source) {
  bundle ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = source;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { bundle = undefined; reject(new Error("The chart library did not load.")); };
    document.head.append(script);
  });
  return bundle;
}

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function themed(figure) {
  const line = token("--line"), text = token("--text-2");
  for (const trace of figure.data) Object.assign(trace, { line: { color: token("--accent"), width: 1.5 } });
  for (const shape of figure.layout.shapes ?? []) {
    shape.line.color = shape.name === "event" ? token("--down") : token("--degraded");
    if (shape.label) shape.label.font = { color: text, size: 10 };
  }
  for (const note of figure.layout.annotations ?? []) note.font = { color: text, size: 10 };
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickfont: { color: text, size: 10 } };
  Object.assign(figure.layout, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: token("--font"), color: text },
    hoverlabel: { bgcolor: token("--panel-2"), bordercolor: line, font: { color: token("--text") } },
    xaxis: { ...figure.layout.xaxis, ...axis, showgrid: false }, yaxis: { ...figure.layout.yaxis, ...axis, nticks: 4 },
  });
  return figure;
}

export class Chart {
  constructor(element) {
    this.element = element;
    this.plot = element.querySelector("[data-chart-plot]");
    this.note = element.querySelector("[data-chart-note]");
    this.age = element.querySelector("[data-chart-age]");
    this.table = element.querySelector("[data-chart-table]");
    this.range = new URLSearchParams(location.search).get("range") ?? element.dataset.chartRange ?? "3h";
    element.querySelector("[data-chart-as-table]")?.addEventListener("click", () => this.toggleTable());
  }

  async load() {
    this.element.setAttribute("aria-busy", "true");
    const url = new URL(this.element.dataset.chartUrl, location.href);
    url.searchParams.set("range", this.range);
    try {
      const answer = await fetch(url, { headers: { Accept: "application/json" }, credentials: "same-origin" });
      const body = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Error(body.reason ?? `The server answered ${answer.status}.`);
      await this.show(body);
      this.element.dataset.state = "ready";
    } catch (error) {
      // The last line stays, greyed: it is still the last thing known.
      this.element.dataset.state = "failed";
      this.note.textContent = error.message;
    } finally {
      this.element.removeAttribute("aria-busy");
    }
  }

  async show(body) {
    this.body = body;
    this.note.textContent = body.summary + (body.complete ? "" : ` Partial answer: ${body.warnings.join("; ")}`);
    if (this.age) this.age.textContent = body.age_seconds === null ? "no data" : `${Math.round(body.age_seconds)} s old · ${body.zone}`;
    const library = await plotly(this.element.dataset.chartPlotly);
    const figure = themed(structuredClone(body.figure));
    const config = { displayModeBar: false, responsive: true };
    await library.react(this.plot, figure.data, figure.layout, config);
    if (this.table && !this.table.hidden) this.fillTable();
  }

  toggleTable() {
    if (!this.table || !this.body) return;
    this.table.hidden = !this.table.hidden;
    this.plot.hidden = !this.table.hidden;
    if (!this.table.hidden) this.fillTable();
  }

  fillTable() {
    const rows = this.body.points.map(([time, value]) => {
      const row = document.createElement("tr");
      const stamp = document.createElement("td"), number = document.createElement("td");
      stamp.textContent = new Date(time * 1000).toISOString().slice(0, 19) + "Z";
      number.textContent = value === null ? "not reported" : `${value} ${this.body.unit}`;
      number.className = "num";
      row.append(stamp, number);
      return row;
    });
    this.table.querySelector("tbody").replaceChildren(...rows);
  }
}

export function startCharts(root = document) {
  const charts = [...root.querySelectorAll("[data-chart-url]")].map((element) => new Chart(element));
  const shown = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.find((one) => one.element === entry.target);
      if (!entry.isIntersecting) shown.delete(chart);
      else if (!shown.has(chart)) { shown.add(chart); chart.load(); }
    }
  });
  charts.forEach((chart) => watcher.observe(chart.element));
  setInterval(() => { if (!document.hidden) shown.forEach((chart) => chart.load()); }, 30_000);
  new MutationObserver(() => shown.forEach((chart) => chart.body && chart.show(chart.body)))
    .observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  for (const picker of root.querySelectorAll("[data-chart-ranges]")) {
    picker.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-range]");
      if (!button) return;
      for (const other of picker.querySelectorAll("button[data-range]")) other.setAttribute("aria-pressed", String(other === button));
      const url = new URL(location.href);
      url.searchParams.set("range", button.dataset.range);
      history.replaceState(null, "", url);
      for (const chart of charts) { chart.range = button.dataset.range; if (shown.has(chart)) chart.load(); }
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, [contenteditable]") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.body.dataset.letterKeys === "off") return;
    if (event.key === "v") charts.forEach((chart) => chart.toggleTable());
    if (event.key === "y") navigator.clipboard?.writeText(location.href);
  });
  return charts;
}

startCharts();
