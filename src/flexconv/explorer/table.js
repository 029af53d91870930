/* The table of all layers, which shows in numbers what the charts show. */

const TABLE_COLUMNS = [
  ["name", (layer) => layer.name],
  ["generator", (layer) => layer.generator],
  ["input channels", (layer) => layer.channels[0]],
  ["output channels", (layer) => layer.channels[1]],
  ["kernel size", (layer) => times(layer.extent)],
  ["grid", (layer) => times(layer.grid)],
  ["mask center", (layer) => layer.mean?.map((value) => number(value, 3)).join(", ") ?? "–"],
  ["mask sigma", (layer) => layer.sigma?.map((value) => number(value, 3)).join(", ") ?? "–"],
  ["99 % of the energy below (1 = Nyquist)", (layer) => layer.measured.map(short).join(", ")],
  ["energy beyond Nyquist (%)", (layer) => short(100 * layer.energy)],
  ["beyond 1.5 × Nyquist (%)", (layer) => short(100 * layer.folded)],
  ["parameters", (layer) => layer.parameters],
  ["multiply-adds (%)", (layer) => (layer.share === null ? "–" : short(100 * layer.share))],
];

/* Rows of the table: a header, then the layers of all networks. */
function tableRows() {
  const columns = networks.length > 1 ? [["network", null], ...TABLE_COLUMNS] : TABLE_COLUMNS;
  const rows = networks.flatMap((network, index) => network.layers.map((layer) =>
    columns.map(([, read]) => (read ? read(layer) : LETTERS[index]))));
  return [columns.map(([title]) => title), ...rows];
}

function buildTable() {
  const [header, ...rows] = tableRows();
  const line = (tag, cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => text(tag, typeof cell === "number" ? "number" : "",
      typeof cell === "number" ? cell.toLocaleString("en") : cell)));
    return row;
  };
  const table = document.createElement("table");
  table.append(document.createElement("thead"), document.createElement("tbody"));
  table.tHead.append(line("th", header));
  table.tBodies[0].append(...rows.map((row) => line("td", row)));
  const figure = text("figure", "", text("div", "table", table));
  figure.firstChild.tabIndex = 0; // so that the keyboard can scroll it
  figure.firstChild.setAttribute("role", "region");
  figure.firstChild.setAttribute("aria-label", "Table of all layers");
  addDownloads(figure, () => ({
    label: "the table",
    name: fileName(...networks.map((network) => network.title), "layers"),
    heading: networks.map((network, index) => named(index, network.title)).join(" · "),
    rows: tableRows(),
  }));
  element("table").append(figure);
}
