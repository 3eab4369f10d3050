// Switches, sliders and the start: each picture is replaced once its figure is drawn,
// so the page is whole without this script.

/** A slider over `count` places. */
function slider(parent, name, count, at, moved) {
  const label = element(parent, "label", { className: "cursor" });
  element(label, "span", { textContent: name });
  const input = element(label, "input", { type: "range", min: 0, max: count - 1, step: 1 });
  input.value = at;
  input.addEventListener("input", moved);
  return input;
}

/** A row per line: its switch, and its value at the cursor. */
function switches(chart, parent) {
  const field = element(parent, "fieldset", { className: "switches" });
  element(field, "legend", { textContent: "Lines" });
  chart.told = new Map();
  for (const series of chart.says.series) {
    const row = element(field, "div");
    const label = element(row, "label", { className: `chip colour-${series.colour}` });
    const box = element(label, "input", { type: "checkbox", checked: series.shown });
    element(label, "i");
    label.append(series.name);
    chart.told.set(series, element(row, "span"));
    box.addEventListener("change", () => {
      chart.on[box.checked ? "add" : "delete"](series);
      draw(chart);
    });
  }
}

function seeds(chart, parent) {
  const all = new Set(chart.says.series.flatMap((s) => Object.keys(s.columns)));
  all.delete("");
  if (all.size < 2) return;
  const label = element(parent, "label", { className: "seeds", textContent: "Seed " });
  const select = element(label, "select");
  const words = `all ${all.size}: median and middle half`;
  select.append(new Option(words, ""), ...[...all].map((s) => new Option(s, s)));
  select.addEventListener("change", () => {
    chart.seed = select.value;
    draw(chart);
  });
}

function live(figure) {
  const says = JSON.parse(figure.dataset.chart);
  const link = document.getElementById(says.source);
  const picture = figure.querySelector("picture");
  const chart = { says, rows: read(link), seed: "" };
  chart.on = new Set(says.series.filter((s) => s.shown));
  const plot = document.createElement("div");
  plot.className = "plot";
  // An HTML parser knows an svg element's namespace.
  plot.innerHTML = '<p class="axis"></p><div><svg role="img"></svg></div>';
  plot.firstChild.textContent = says.y;
  chart.svg = plot.querySelector("svg");
  chart.svg.setAttribute("aria-label", picture.querySelector("img").alt);
  picture.after(plot);
  chart.input = slider(plot, says.x, chart.rows.length, chart.rows.length - 1, () => point(chart));
  chart.output = element(chart.input.parentNode, "output", { ariaLive: "off" });
  switches(chart, plot);
  seeds(chart, plot);
  chart.svg.addEventListener("pointermove", (event) => {
    const left = chart.svg.getBoundingClientRect().left;
    const far = chart.rows.map((row) => Math.abs(chart.x(row[0]) - event.clientX + left));
    chart.input.value = far.indexOf(Math.min(...far));
    point(chart);
  });
  figure.classList.add("live");
  draw(chart);
  new ResizeObserver(() => {
    if (plot.clientWidth !== chart.width) draw(chart);
  }).observe(plot);
}

/** Predicted frames, one at a time. */
function film(box) {
  const count = Number(box.dataset.frames);
  const move = () => {
    const i = Number(input.value);
    for (const img of box.querySelectorAll("img")) {
      img.style.transform = `translateX(${(-100 * i) / count}%)`;
    }
    for (const error of box.querySelectorAll(".error")) {
      error.textContent = `MSE ${error.dataset.errors.split("|")[i]}`;
    }
    said.textContent = `${i + 1} of ${count}`;
    input.setAttribute("aria-valuetext", said.textContent);
  };
  const input = slider(box, "frame", count, 0, move);
  const said = element(input.parentNode, "output", { ariaLive: "off" });
  box.hidden = false;
  box.closest("figure").classList.add("live");
  move();
}

const start = (found, work) => found.forEach((one) => {
  try {
    work(one);
  } catch (error) {
    console.error(error); // Its picture stays.
  }
});
start(document.querySelectorAll("figure[data-chart]"), live);
start(document.querySelectorAll(".slides"), film);
