// The page's own script: draws each figure from the table that a reader downloads.

/** The rows of a CSV file in a link, one per number, as `Curves.chart` takes them. */
function rows(link, columns) {
  const address = link.getAttribute("href");
  const text = decodeURIComponent(address.slice(address.indexOf(",") + 1));
  const lines = text.trimEnd().split("\n").slice(1).map((line) => line.split(","));
  return columns.flatMap(([k, seed], column) => lines.flatMap((cells) => {
    const value = cells[column + 1];
    return value === "" ? [] : [{ x: Number(cells[0]), k, seed, value: Number(value) }];
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
  await vegaEmbed(plot, spec, options);
}

document.querySelectorAll(".plot").forEach(draw);
