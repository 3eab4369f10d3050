// The page's own script: draws each figure from the table that a reader downloads, and
// moves through predicted frames.

/** The rows of a CSV file in a link, one per number, as `Curves.rows` has them. */
function rows(link, columns) {
  const address = link.getAttribute("href");
  const text = decodeURIComponent(address.slice(address.indexOf(",") + 1));
  const lines = text.trimEnd().split("\n").slice(1).map((line) => line.split(","));
  return columns.flatMap(([k, seed], column) => lines.flatMap((cells, i) => {
    const value = cells[column + 1];
    return value === "" ? [] : [{ i, x: Number(cells[0]), k, seed, value: Number(value) }];
  }));
}

async function draw(plot) {
  const { source, columns } = plot.dataset;
  const spec = JSON.parse(plot.nextElementSibling.textContent);
  if (columns) {
    const table = rows(document.getElementById(source), JSON.parse(columns));
    spec.datasets = { ...spec.datasets, curves: table };
  }
  // `ast` interprets expressions, which the page's policy forbids to compile.
  const options = { renderer: "svg", ast: true, actions: false, defaultStyle: false };
  const { view } = await vegaEmbed(plot, spec, options);
  // Whoever does not see the cursor's values hears them.
  const cursor = plot.querySelector("input[type=range]");
  const say = async () => {
    await view.runAsync();
    const said = [...plot.querySelectorAll("svg .mark-text text")].map((t) => t.textContent);
    cursor.setAttribute("aria-valuetext", said.reverse().join("; "));
  };
  if (cursor) {
    plot.addEventListener("input", say);
    await say();
  }
}

/** Predicted frames, one at a time. */
function film(box) {
  const input = box.querySelector("input");
  const said = box.querySelector("output");
  const count = Number(input.max);
  const move = () => {
    const i = Number(input.value) - 1;
    for (const image of box.querySelectorAll("img")) {
      image.style.transform = `translateX(${(-100 * i) / count}%)`;
    }
    for (const error of box.querySelectorAll("[data-errors]")) {
      error.textContent = `MSE ${error.dataset.errors.split(" ")[i]}`;
    }
    said.textContent = `${i + 1} of ${count}`;
  };
  input.addEventListener("input", move);
  move();
}

document.querySelectorAll(".plot").forEach(draw);
document.querySelectorAll(".film").forEach(film);
