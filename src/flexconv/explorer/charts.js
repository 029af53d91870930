/* Charts of the whole network: by layer, and over training. */

const CHART_MARGINS = { left: 48, right: 12, top: 10, bottom: 36 };
const LINES = ["var(--first)", "var(--second)", "var(--third)"];
const NETWORK_COLOURS = LINES; // of the first and the second network, if there are two
const DASHES = ["", "5 3", "1.5 3"];
const MARKS = [
  (x, y) => `M${x - 3.2} ${y}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0`,
  (x, y) => `M${x - 3} ${y - 3}h6v6h-6z`,
  (x, y) => `M${x} ${y - 4}l4 7h-8z`,
];

/* Append a figure with an empty plot and an empty caption to a section. */
function addFigure(section, name) {
  const figure = document.createElement("figure");
  const plot = document.createElement("div");
  plot.className = "plot";
  plot.id = `chart-${name}`;
  plot.setAttribute("role", "img");
  const caption = document.createElement("figcaption");
  figure.append(plot, caption);
  section.append(figure);
  return [plot, caption];
}

/* Finish a chart: its description for screen readers, and buttons to save it. */
function finishChart(host, caption, series, xTitle) {
  const label = caption.querySelector("b").textContent;
  host.setAttribute("aria-label", `Chart: ${label}, by ${xTitle}`);
  addDownloads(host.closest("figure"), () => ({
    label: label.toLowerCase(),
    name: fileName(...networks.map((network) => network.title), host.id.replace("chart-", "")),
    heading: networks.map((network, index) => named(index, network.title)).join(" · "),
    rows: seriesRows(series, xTitle),
  }));
}

function chartPlot(host, xRange, yRange) {
  const width = host.clientWidth - CHART_MARGINS.left - CHART_MARGINS.right;
  return makePlot(host, [width, Math.min(240, 0.62 * width)], CHART_MARGINS, xRange, yRange);
}

/* series: [{ name, xs, values: [y or null for each x], colour, dash?, shape?: index of a marker, or null for none, width?,
     opacity? }]. Series without a name are not read out.
   options: xTitle, yTitle: titles of the axes; zero: start the y-axis at 0; label: formats values of y;
   wholeY: y-ticks at integers only; mark: an x to highlight. */
function drawLines(host, series, { xTitle, yTitle = "", zero = true, label = short, wholeY = false, mark = null }) {
  const values = series.flatMap((each) => each.values).filter((value) => value !== null);
  const bottom = zero ? Math.min(0, ...values) : Math.min(...values);
  const high = Math.max(...values);
  const top = high + 0.06 * (high - bottom || 1);
  const all = series.flatMap((each) => each.xs);
  const [first, last] = [Math.min(...all), Math.max(...all)];
  const margin = 0.02 * (last - first) || 0.5;
  const plot = chartPlot(host, [first - margin, last + margin], [top, bottom]);
  drawAxis(plot, "left", ticks(bottom, top, 5, wholeY), label, yTitle, true);
  drawAxis(plot, "bottom", ticks(first, last, plot.box.width / 50, true), (v) => number(v, 0), xTitle);
  if (mark !== null) {
    const x = plot.x(mark);
    plot.area.append(svg("path", { class: "chosen", d: `M${x} ${plot.box.top}v${plot.box.height}` }));
  }
  for (const each of series) drawLine(plot, each);
  readOut(host, plot, series, xTitle, label);
}

function drawLine(plot, { xs, values, colour, dash = "", shape, width = 1.6, opacity = 1 }) {
  const known = values.map((y, i) => y === null ? null : [plot.x(xs[i]), plot.y(y)]).filter(Boolean);
  if (!known.length) return;
  const style = `stroke:${colour};stroke-width:${width};opacity:${opacity};stroke-dasharray:${dash || "none"}`;
  plot.area.append(svg("path", { class: "curve", d: path(known), style }));
  const marker = shape === undefined && known.length < 12 ? 0 : shape ?? null;
  if (marker === null) return;
  const d = known.map(([x, y]) => MARKS[marker](x, y)).join("");
  plot.root.append(svg("path", { d, style: `fill:${colour};opacity:${opacity}` }));
}

/* Show the values of all named series at the x under the pointer. */
function readOut(host, plot, series, xTitle, label) {
  const output = text("output", "readout");
  const line = svg("path", { class: "chosen" });
  plot.root.append(line);
  host.append(output);
  const readable = series.filter((each) => each.name);
  const xs = [...new Set(readable.flatMap((each) => each.xs))];
  host.onpointermove = (event) => {
    const left = event.clientX - host.getBoundingClientRect().left;
    const x = xs.reduce((best, each) => (Math.abs(plot.x(each) - left) < Math.abs(plot.x(best) - left) ? each : best));
    const words = readable.map((each) => [each.name, each.values[each.xs.indexOf(x)]])
      .filter(([, value]) => Number.isFinite(value)).map(([name, value]) => `${name} ${label(value)}`);
    line.setAttribute("d", `M${plot.x(x)} ${plot.box.top}v${plot.box.height}`);
    output.textContent = words.length ? `${xTitle} ${number(x, 0)}: ${words.slice(0, 6).join(", ")}` : "";
  };
  host.onpointerleave = () => {
    output.textContent = "";
    line.removeAttribute("d");
  };
}

const depths = () => layerNames.map((_, i) => i + 1);
const networkDims = (network) => Math.max(...network.layers.map(dims));
const axesOf = (network) => Array.from({ length: networkDims(network) }, (_, axis) => axis);
const axisName = (network, axis) => (networkDims(network) === 1 ? "size" : AXES[networkDims(network)][axis]);
const inOrder = (network) => layerNames.map((_, index) => layerAt(network, index));
const highest = (values) => (values ? Math.max(...values) : null);

/* The name of a series: with the letter of its network, if there are two. */
const named = (index, name) => (LETTERS[index] ? `${LETTERS[index]} ${name}` : name);
/* One network: a colour for each kind of line. Two networks: a colour for each network, and dashes for the kinds. */
const lineStyle = (index, kind) => (networks.length > 1
  ? { colour: NETWORK_COLOURS[index], dash: DASHES[kind] } : { colour: LINES[kind], dash: "" });
const entryFor = ({ name, colour, dash = "" }) =>
  legendEntry(name, "curve", `stroke:${colour};stroke-dasharray:${dash || "none"}`);

/* Add all figures before drawing the first one, because their width depends on their number. */
function drawFigures(section, drawings) {
  const figures = Object.keys(drawings).map((name) => addFigure(section, name));
  Object.values(drawings).forEach((draw, i) => draw(...figures[i]));
}

function drawDepth(section) {
  const drawings = { sizes: drawSizesByDepth };
  if (networks.some((network) => network.layers.some((layer) => layer.share !== null))) drawings.work = drawWorkByDepth;
  drawings.frequency = drawFrequencyByDepth;
  drawings.energy = drawEnergyByDepth;
  drawFigures(section, drawings);
}

function drawSizesByDepth(host, caption) {
  const each = (make) => networks.flatMap((network, index) =>
    axesOf(network).map((axis) => make(inOrder(network), index, axis)));
  const series = each((layers, index, axis) => ({
    name: named(index, axisName(networks[index], axis)), xs: depths(), values: layers.map((layer) => layer?.extent[axis] ?? null),
    shape: axis, ...lineStyle(index, axis),
  }));
  const grids = each((layers) => ({
    xs: depths(), values: layers.map((layer) => highest(layer?.grid ?? null)),
    colour: "var(--muted)", shape: null, width: 1, opacity: 0.5,
  }));
  const titles = { xTitle: "layer", yTitle: "taps" };
  drawLines(host, [...grids, ...series], { ...titles, wholeY: true, mark: state.layer + 1 });
  caption.append(strong("Learned kernel size"), " of every layer.",
    legend(...series.map(entryFor), legendEntry("largest possible size", "axis", "stroke:var(--muted)")));
  finishChart(host, caption, series, "layer");
}

function drawWorkByDepth(host, caption) {
  const shares = networks.map((network) => inOrder(network).map((layer) => layer?.share ?? 0));
  const top = 1.06 * Math.max(...shares.flat()) || 1;
  const plot = chartPlot(host, [0.4, layerNames.length + 0.6], [top, 0]);
  drawAxis(plot, "left", ticks(0, top, 5), (v) => `${short(100 * v)} %`, "", true);
  drawAxis(plot, "bottom", ticks(1, layerNames.length, plot.box.width / 50, true), (v) => number(v, 0), "layer");
  const wide = 0.7 / networks.length;
  shares.forEach((values, which) => values.forEach((share, i) => {
    const [left, y] = [plot.x(i + 0.65 + which * wide), plot.y(share)];
    plot.area.append(svg("rect", {
      class: i === state.layer ? "bar current" : "bar", style: `fill:${NETWORK_COLOURS[which]}`,
      x: left, y, width: plot.x(wide) - plot.x(0), height: plot.y(0) - y,
    }));
  }));
  const series = shares.map((values, which) =>
    ({ name: named(which, "share"), xs: depths(), values, colour: NETWORK_COLOURS[which] }));
  readOut(host, plot, series, "layer", (v) => `${short(100 * v)} %`);
  caption.append(strong("Multiply-adds"),
    " of every layer at its current kernel size, as a share of all convolutions and linear layers.",
    legend(...(networks.length > 1 ? series.map((each, i) => entryFor({ ...each, name: LETTERS[i] })) : [])));
  finishChart(host, caption, series, "layer");
}

function drawFrequencyByDepth(host, caption) {
  const measured = networks.map((network, index) => ({
    name: named(index, "99 % of the energy is below this"), xs: depths(), shape: 0, ...lineStyle(index, 0),
    values: inOrder(network).map((layer) => highest(layer?.measured ?? null)),
  }));
  const bounds = networks.map((network, index) => ({
    name: named(index, "upper bound, which a kernel need not reach"), xs: depths(), shape: null, width: 1,
    colour: "var(--muted)", dash: DASHES[1 + index],
    values: inOrder(network).map((layer) => highest(layer?.versions[OWN].bound ?? null)),
  })).filter(({ values }) => values.some((value) => value !== null));
  const nyquist = {
    name: "Nyquist frequency", xs: depths(), values: depths().map(() => 1), colour: "var(--ink)", shape: null, width: 1.2,
  };
  const series = [...measured, nyquist, ...bounds];
  const titles = { xTitle: "layer", yTitle: "frequency (1 = Nyquist)" };
  drawLines(host, series, { ...titles, mark: state.layer + 1 });
  caption.append(strong("Frequencies"), " of every kernel, measured between its taps, along the axis where they are highest.",
    legend(...series.map(entryFor)));
  finishChart(host, caption, series, "layer");
}

function drawEnergyByDepth(host, caption) {
  const values = (network, read) => inOrder(network).map((layer) => (layer ? read(layer) : null));
  const beyond = networks.map((network, index) => ({
    name: named(index, "beyond Nyquist"), xs: depths(), shape: 0, ...lineStyle(index, 0),
    values: values(network, (layer) => layer.energy),
  }));
  const folded = networks.map((network, index) => ({
    name: named(index, "beyond 1.5 × Nyquist"), xs: depths(), shape: 1, ...lineStyle(index, 1),
    values: values(network, (layer) => layer.folded),
  }));
  const limit = {
    name: "from here, the latter costs accuracy", xs: depths(), values: depths().map(() => data.muchFolded),
    colour: "var(--ink)", shape: null, width: 1, dash: DASHES[2],
  };
  const series = [...beyond, ...folded, limit];
  const label = (value) => `${short(100 * value)} %`;
  drawLines(host, series, { xTitle: "layer", label, mark: state.layer + 1 });
  const marked = networks.map((network) => network.layers.filter((layer) => layer.aliased).length);
  const total = marked.reduce((a, b) => a + b, 0);
  caption.append(strong("Energy beyond the Nyquist frequency"),
    " of every kernel, measured between its taps. Sampling folds what lies beyond 1.5 × Nyquist into the lower half of the "
    + "band. ", total ? `${total} layer${total === 1 ? " depends" : "s depend"} on the resolution.`
      : "No layer depends on the resolution.",
    legend(...series.map(entryFor)));
  finishChart(host, caption, series, "layer");
}

/* --- training --- */

const SPLITS = { train: 0, validation: 1, val: 1, valid: 1, test: 2 };

function drawTraining(section) {
  const drawings = {};
  const trained = networks.filter((network) => network.history);
  for (const count of new Set(trained.map((network) => network.history.count))) {
    const counted = networks.map((network) => (network.history?.count === count ? network.history : null));
    for (const metric of new Set(counted.flatMap((history) => Object.keys(history?.metrics ?? {})))) {
      drawings[`metric-${metric}-by-${count}`] = (host, caption) => drawMetric(host, caption, metric, counted, count);
    }
  }
  networks.forEach((network, index) => {
    const names = network.layers.map((layer) => layer.name).filter((name) => network.history?.sizes[name]);
    for (const axis of names.length ? axesOf(network) : []) {
      drawings[`sizes-${axis}${LETTERS[index]}`] = (host, caption) =>
        drawSizesOverTime(host, caption, index, names, axis);
    }
  });
  drawFigures(section, drawings);
}

function drawMetric(host, caption, metric, histories, count) {
  const share = metric.endsWith("accuracy");
  const series = histories.flatMap((history, index) => Object.entries(history?.metrics[metric] ?? {}).map(
    ([split, values]) => ({
      name: named(index, split), split, xs: history.at, values, ...lineStyle(index, SPLITS[split] ?? 2),
    })));
  const label = share ? (value) => `${short(100 * value)} %` : short;
  drawLines(host, series, { xTitle: count, zero: !share, label });
  const best = series.filter(({ split }) => split !== "train").map(({ name, values }) => {
    const known = values.filter((value) => value !== null);
    const value = share ? Math.max(...known) : Math.min(...known);
    return ` Best ${name}: ${share ? `${number(100 * value, 2)} %` : short(value)}.`;
  });
  const words = metric.replace("top5", "top-5").replaceAll("_", " ");
  const name = words[0].toUpperCase() + words.slice(1);
  caption.append(strong(name), " during training.", ...best, legend(...series.map(entryFor)));
  finishChart(host, caption, series, count);
}

function drawSizesOverTime(host, caption, index, names, axis) {
  const { history } = networks[index];
  const chosen = layerNames[state.layer];
  const shade = (i) => 0.3 + (0.7 * i) / Math.max(1, names.length - 1);
  const series = names.map((name, i) => ({
    name, xs: history.at, values: history.sizes[name].map((size) => size?.[axis] ?? null),
    colour: name === chosen ? "var(--chosen)" : colourOf("energy", shade(i)),
    width: name === chosen ? 3 : 1.4,
  }));
  series.sort((a, b) => (a.name === chosen) - (b.name === chosen));
  drawLines(host, series, { xTitle: history.count, yTitle: "taps", wholeY: true });
  caption.append(...badge(index), strong(`Kernel ${axisName(networks[index], axis)}`), " during training.", legend(
    legendEntry("first layer", "curve", `stroke:${colourOf("energy", shade(0))}`),
    names.length > 1 && legendEntry("last layer", "curve", `stroke:${colourOf("energy", shade(names.length - 1))}`),
    names.includes(chosen) && legendEntry(chosen, "curve", "stroke:var(--chosen);stroke-width:3")));
  finishChart(host, caption, series, history.count);
}
