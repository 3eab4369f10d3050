// Numbers of the charts: read from a CSV file of the page, summed up over seeds,
// placed on axes, written for a reader.

/** The numbers of a CSV file in a link: rows of columns, NaN where a cell is empty. */
function read(link) {
  const address = link.getAttribute("href");
  const text = decodeURIComponent(address.slice(address.indexOf(",") + 1));
  const number = (cell) => (cell === "" ? NaN : Number(cell));
  return text.replace(/\n$/, "").split("\n").slice(1)
    .map((line) => line.split(",").map(number));
}

/** The q-quantile as NumPy has it: linear between neighbours. */
function quantile(sorted, q) {
  const at = q * (sorted.length - 1);
  const low = Math.floor(at);
  const high = Math.ceil(at);
  return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

/** Curves of a line, one per seed; in percent of the base's of the same seed. */
function curves({ rows, says, seed }, series) {
  const base = says.base && says.series.find((s) => s.name === says.base).columns;
  const seeds = Object.keys(series.columns)
    .filter((s) => (!base || s in base) && (seed === "" || s === seed || s === ""));
  const all = seeds.map((s) => rows.map((row) => {
    const value = row[series.columns[s]];
    return base ? 100 * (value / row[base[s]] - 1) : value;
  }));
  // Seeds that diverged are left out, as in the pictures.
  const finite = all.filter((curve) => curve.every(Number.isFinite));
  return finite.length ? finite : all;
}

/** Quarter, median and three quarters of the seeds at each point. */
function band(chart, series) {
  const all = curves(chart, series);
  if (!all.length) return null;
  const points = chart.rows.map((_, i) => {
    const sorted = all.map((curve) => curve[i]).sort((a, b) => a - b);
    return [0.25, 0.5, 0.75].map((q) => quantile(sorted, q));
  });
  return { series, points, several: all.length > 1 };
}

/** A number in few digits; with a sign and the unit where the chart is relative. */
function write(value, relative, digits = 4) {
  const size = Math.abs(value);
  const plain = size === 0 || (size >= 1e-4 && size < 1e5);
  const text = plain
    ? String(Number(value.toPrecision(digits)))
    : value.toExponential(Math.min(2, digits - 1));
  const sign = relative && value > 0 ? "+" : "";
  return sign + text.replace(/-/g, "\u2212") + (relative ? "\u00a0%" : "");
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : Number;
  const slope = (to - from) / (f(high) - f(low) || 1);
  return (value) => from + slope * (f(value) - f(low));
}

/** Round numbers between two ends, at most so many. */
function ticks(low, high, log, most) {
  if (!log || high / low < 8) {
    const rough = (high - low) / most || 1;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((n) => n * unit >= rough);
    const first = Math.ceil(low / step);
    const count = Math.floor(high / step) - first + 1;
    return Array.from({ length: Math.max(0, count) }, (_, i) => (first + i) * step);
  }
  const [bottom, top] = [low, high].map((v) => Math.floor(Math.log10(v)));
  const powers = Array.from({ length: top - bottom + 1 }, (_, i) => bottom + i);
  const every = Math.ceil(powers.length / most);
  const choices = [[1, 2, 5], [1, 3], [1]].map((parts) =>
    powers.filter((p) => p % every === 0)
      .flatMap((p) => parts.map((n) => n * 10 ** p))
      .filter((v) => v >= low && v <= high));
  return choices.find((marks) => marks.length <= most) || choices[2];
}

/** Ends of the y axis: what is shown, and the zone, with some room. */
function ends(chart, bands) {
  const { yLog, zone, base } = chart.says;
  let values = bands.flatMap((b) => b.points.flat()).filter(Number.isFinite);
  if (yLog) values = values.filter((v) => v > 0);
  if (base) values.push(1.3 * (zone || 0), -1.3 * (zone || 0));
  if (!values.length) return [yLog ? 0.1 : 0, 1];
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = 0.06 * (high - low) || Math.abs(high) || 1;
  return yLog ? [low / 1.08, high * 1.08] : [low - room, high + room];
}
