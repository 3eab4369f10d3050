// A chart as SVG: axes, lines with the middle half of the seeds, a mark to read values.

const SMALL = 480; // Below this width, in pixels, a chart is lower.
const DASH = 6; // Pixels of a dash; lines that coincide take turns.
const FEW = 12; // Up to so many points are marked one by one.

function element(parent, tag, properties = {}) {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  parent.append(node);
  return node;
}

function shape(parent, tag, attributes, text = "") {
  const node = document.createElementNS(parent.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  node.textContent = text;
  parent.append(node);
  return node;
}

/** A path through the points that are finite. */
function path(points) {
  const finite = points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  return finite.map(([x, y], i) =>
    `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function axes(chart) {
  const { svg, says, x, y, box } = chart;
  for (const value of ticks(...chart.yEnds, says.yLog, 5)) {
    shape(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) });
    const text = write(value, Boolean(says.base), 3);
    shape(svg, "text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, text);
  }
  const few = chart.rows.length <= FEW;
  const marks = few
    ? chart.rows.map((row) => row[0])
    : ticks(...chart.xEnds, says.xLog, box.right > SMALL ? 7 : 4);
  for (const value of marks) {
    const place = { x: x(value), y: box.bottom + 17, "text-anchor": "middle" };
    shape(svg, "text", place, write(value));
  }
  const middle = (box.left + box.right) / 2;
  const place = { x: middle, y: box.bottom + 33, "text-anchor": "middle" };
  shape(svg, "text", place, says.x);
}

function line(chart, { series, points, several }, turn, turns) {
  const { svg, rows, x, y, says } = chart;
  const group = shape(svg, "g", { class: `line colour-${series.colour}` });
  const at = (which) => points.map((p, i) => [x(rows[i][0]), y(p[which])]);
  if (several) {
    const around = [...at(0), ...at(2).reverse()];
    shape(group, "path", { class: "band", d: `${path(around)}Z` });
  }
  const style = { class: "middle", d: path(at(1)) };
  const control = says.series.some((s) => s.colour === "ink");
  if (series.colour === "ink") style.class = "middle control";
  else if (control && turn >= 0) {
    style["stroke-dasharray"] = `${DASH} ${DASH * turns}`;
    style["stroke-dashoffset"] = -DASH * turn;
  }
  shape(group, "path", style);
  if (rows.length > FEW) return;
  for (const [cx, cy] of at(1).filter((p) => p.every(Number.isFinite))) {
    shape(group, "circle", { cx, cy, r: 3 });
  }
}

function draw(chart) {
  const { svg, says, rows } = chart;
  const width = svg.parentNode.clientWidth;
  if (!width) return; // Not on the screen yet.
  chart.width = width;
  const height = width < SMALL ? 240 : 290;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const box = { left: 58, right: width - 12, top: 10, bottom: height - 42 };
  chart.bands = says.series.filter((s) => chart.on.has(s))
    .map((s) => band(chart, s)).filter(Boolean);
  chart.xEnds = [says.xLog || rows[0][0] < 0 ? rows[0][0] : 0, rows.at(-1)[0]];
  chart.yEnds = ends(chart, chart.bands);
  chart.x = scale(...chart.xEnds, box.left, box.right, says.xLog);
  chart.y = scale(...chart.yEnds, box.bottom, box.top, says.yLog);
  chart.box = box;
  if (says.zone) {
    const [top, bottom] = [chart.y(says.zone), chart.y(-says.zone)];
    shape(svg, "rect", { class: "zone", x: box.left, width: box.right - box.left, y: top, height: bottom - top });
  }
  axes(chart);
  // The control is broad and pale, stale targets a solid line on it, the others dashes.
  const dashed = chart.bands.filter((b) => !["ink", "stale"].includes(b.series.colour));
  for (const b of chart.bands) {
    line(chart, b, dashed.indexOf(b) % 3, Math.min(3, dashed.length));
  }
  chart.mark = shape(svg, "g", { class: "mark" });
  point(chart);
}

/** The values at the cursor: marks in the chart, numbers beside the switches. */
function point(chart) {
  const { says, rows, mark, x, y, box, input, output, told } = chart;
  const i = Number(input.value);
  const at = x(rows[i][0]);
  mark.replaceChildren();
  shape(mark, "line", { x1: at, x2: at, y1: box.top, y2: box.bottom });
  output.textContent = write(rows[i][0]);
  for (const span of told.values()) span.textContent = "";
  const words = [output.textContent];
  for (const { series, points, several } of chart.bands) {
    const [low, middle, high] = points[i];
    if (!Number.isFinite(middle)) continue;
    const group = shape(mark, "g", { class: `colour-${series.colour}` });
    shape(group, "circle", { cx: at, cy: y(middle), r: 4 });
    const number = (value) => write(value, Boolean(says.base), says.base ? 3 : 4);
    const range = several && low < high ? ` (${number(low)} to ${number(high)})` : "";
    told.get(series).textContent = number(middle) + range;
    words.push(`${series.name} ${number(middle)}`);
  }
  input.setAttribute("aria-valuetext", words.join("; "));
}
