// Draws every [data-figure-url]: fetches plotly's JSON, dresses it for the light or dark theme, fills the table
// that says the same in numbers, and draws again when a job has measured more ("figures-changed") or the theme
// changes. The server's colours are those of the light theme; here are their partners on a dark ground.
/* global Plotly */
import { drawLegend } from "./legend.js";

const DARK = { "#0072b2": "#56b4e9", "#d55e00": "#ff9950", "#009e73": "#3ecfa0", "#9b5fa8": "#d39be0", "#6b7680": "#9aa7b2" };
// The list that is listened to is never read: a browser that is asked between the change and its event sends no event.
const DARKNESS = "(prefers-color-scheme: dark)";
const themeChanges = window.matchMedia(DARKNESS);
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function themed(text) {
  if (!window.matchMedia(DARKNESS).matches) return text;
  return Object.entries(DARK).reduce((done, [light, dark]) => done.replaceAll(light, dark), text);
}

function dress(layout) {
  const axis = {
    gridcolor: token("--line"), linecolor: token("--line-strong"), zerolinecolor: token("--line-strong"), zerolinewidth: 1,
    ticks: "outside", tickcolor: token("--line-strong"), ticklen: 4, automargin: true, title: { standoff: 8 },
  };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: token("--ink-soft") },
    hoverlabel: { bgcolor: token("--surface"), bordercolor: token("--line-strong"), font: { color: token("--ink") }, align: "left" },
    xaxis: axis, yaxis: axis, legend: { font: { size: 11 } },
  };
  return { ...layout, autosize: true, template: { layout: base } };
}

function cell(tag, text, numeric) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (numeric) made.className = "n";
  return made;
}

function fillTable(holder, table) {
  if (!holder) return;
  const numeric = table.columns.map((name) => /\[/.test(name) || /points/i.test(name));
  const drawn = document.createElement("table");
  const head = drawn.createTHead().insertRow();
  table.columns.forEach((name, i) => head.append(Object.assign(cell("th", name, numeric[i]), { scope: "col" })));
  const body = drawn.createTBody();
  for (const row of table.rows) {
    const line = body.insertRow();
    row.forEach((value, i) => line.append(cell("td", value, numeric[i])));
  }
  holder.replaceChildren(drawn);
  if (table.more) holder.append(cell("p", `… and ${table.more} more: the CSV has all.`));
}

function say(plot, words) {
  let line = plot.querySelector(".placeholder");
  if (!words) return line && line.remove();
  if (!line) plot.append((line = Object.assign(document.createElement("p"), { className: "placeholder" })));
  line.textContent = words;
}

// A picture that stands alone: with its legend, the name of what it shows, and a ground of its own.
function savePicture(plot, figure, title) {
  const layout = dress({ ...plot.layout, showlegend: true, title: { text: title, font: { size: 14 } }, margin: { ...plot.layout.margin, t: 90 } });
  layout.paper_bgcolor = layout.plot_bgcolor = token("--surface");
  const size = { format: "png", width: 960, height: 600, scale: 2, filename: figure.dataset.figureName || "figure" };
  Plotly.downloadImage({ data: plot.data, layout }, size);
}

const states = new WeakMap();

// A change of theme alone asks the server nothing: what it last said is dressed again.
async function draw(figure, { fresh = true } = {}) {
  const plot = figure.querySelector(".plot");
  const state = states.get(figure) || { hidden: new Set(), asked: 0 };
  states.set(figure, state);
  const mine = ++state.asked;
  try {
    if (fresh || !state.text) {
      const response = await fetch(figure.dataset.figureUrl, { headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(`status ${response.status}`);
      const text = await response.text();
      if (mine !== state.asked) return; // a later call has overtaken this one
      state.text = text;
    }
    const { data, layout, table, note, empty, title } = JSON.parse(themed(state.text));
    figure.querySelector("figcaption").textContent = note;
    fillTable(figure.querySelector("details .table-scroll"), table);
    say(plot, empty);
    if (empty) return;
    const picture = { name: "picture", title: "Save as PNG", icon: Plotly.Icons.camera, click: () => savePicture(plot, figure, title) };
    const options = {
      responsive: true, displaylogo: false, modeBarButtonsToAdd: [picture],
      modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"],
    };
    await Plotly.react(plot, data, dress({ ...layout, showlegend: false }), options);
    drawLegend(figure.querySelector(".legend"), plot, layout, state.hidden);
  } catch (problem) {
    say(plot, `This figure could not be loaded (${problem.message}).`);
  }
}

function drawAll() {
  document.querySelectorAll("[data-figure-url]").forEach((figure) => draw(figure));
}

drawAll();
document.body.addEventListener("htmx:load", (event) => {
  event.detail.elt.querySelectorAll("[data-figure-url]").forEach((figure) => states.has(figure) || draw(figure));
});
themeChanges.addEventListener("change", () => {
  document.querySelectorAll("[data-figure-url]").forEach((figure) => draw(figure, { fresh: false }));
});
document.body.addEventListener("figures-changed", drawAll);
