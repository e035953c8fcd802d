// A figure's legend as HTML: it wraps on small screens, is read by screen readers and hides curves by keyboard.
const SVG = "http://www.w3.org/2000/svg";
const DASH = { solid: "", longdash: "9 4", dashdot: "6 3 1 3", longdashdot: "10 3 2 3", dash: "5 3", dot: "1 3" };
const SHAPE = {
  circle: "M13 6a3.5 3.5 0 1 1-7 0a3.5 3.5 0 1 1 7 0z", square: "M6 2.5h7v7h-7z", "triangle-up": "M9.5 2l4.2 7.4h-8.4z",
  cross: "M8.3 2h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z", diamond: "M9.5 1.6l4.2 4.4l-4.2 4.4l-4.2-4.4z",
  "line-ns": "M9.5 0.5v11",
  "x-thin": "M6.2 2.7l6.6 6.6m0-6.6l-6.6 6.6", star: "M9.5 1.5l1.3 3 3.2.3-2.4 2.1.7 3.2-2.8-1.7-2.8 1.7.7-3.2-2.4-2.1 3.2-.3z",
};

function part(name, attributes) {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => value !== "" && made.setAttribute(key, value));
  return made;
}

function sign(trace) {
  const icon = part("svg", { viewBox: "0 0 19 12", width: 28, height: 14, "aria-hidden": "true" });
  if (trace.type === "bar") {
    icon.append(part("path", { d: "M2 1.5h15v9h-15z", fill: trace.marker.color }));
    if (trace.marker.pattern?.shape) icon.append(part("path", { d: "M5 10.5l6-9m0 9l6-9", stroke: "#fff", "stroke-width": 1.4, "stroke-opacity": 0.7 }));
    return icon;
  }
  const lines = (trace.mode || "lines").includes("lines");
  if (lines) icon.append(part("path", { d: "M0 6h19", stroke: trace.line.color, "stroke-width": 2, "stroke-dasharray": DASH[trace.line.dash] || "" }));
  if ((trace.mode || "").includes("markers")) {
    const symbol = trace.marker.symbol || "circle";
    const hollow = symbol.includes("open");
    const colour = trace.marker.color;
    icon.append(part("path", { d: SHAPE[symbol.replace("-open", "")] || SHAPE.circle, fill: hollow ? "none" : colour, stroke: colour, "stroke-width": 1.4 }));
  }
  return icon;
}

export function drawLegend(holder, plot, layout, hidden) {
  const list = document.createElement("ul");
  const title = layout.legend?.title?.text?.trim();
  const toggled = (group, on) => Plotly.restyle(plot, { visible: on }, plot.data.flatMap((t, i) => (t.legendgroup === group ? [i] : [])));
  if (title) list.append(Object.assign(document.createElement("li"), { className: "title", textContent: title }));
  plot.data.filter((trace) => trace.name && trace.showlegend !== false).forEach((trace) => {
    const group = trace.legendgroup;
    const entry = document.createElement(group ? "button" : "span");
    // Plotly's names are escaped for its own little markup; here they are text.
    const words = trace.name.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
    entry.append(sign(trace), words);
    if (group) {
      entry.type = "button";
      entry.title = "Show or hide";
      entry.setAttribute("aria-pressed", String(!hidden.has(group)));
      entry.addEventListener("click", () => {
        const on = hidden.delete(group);
        if (!on) hidden.add(group);
        entry.setAttribute("aria-pressed", String(on));
        toggled(group, on);
      });
      if (hidden.has(group)) toggled(group, false);
    }
    const line = document.createElement("li");
    line.append(entry);
    list.append(line);
  });
  holder.replaceChildren(list);
}
