/* Charts of the whole network: by layer, and over training. */

const CHART_MARGINS = { left: 48, right: 12, top: 10, bottom: 36 };
const LINES = ["var(--first)", "var(--second)", "var(--third)"];
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
  const caption = document.createElement("figcaption");
  figure.append(plot, caption);
  section.append(figure);
  return [plot, caption];
}

function chartPlot(host, xRange, yRange) {
  const width = host.clientWidth - CHART_MARGINS.left - CHART_MARGINS.right;
  return makePlot(host, [width, Math.min(240, 0.62 * width)], CHART_MARGINS, xRange, yRange);
}

/* series: [{ values: [y or null for each x], colour, shape?: index of a marker, or null for none, width?, opacity? }]
   options: xTitle, yTitle: titles of the axes; zero: start the y-axis at 0; label: formats values of y;
   wholeY: y-ticks at integers only; mark: an x to highlight. */
function drawLines(host, xs, series, { xTitle, yTitle = "", zero = true, label = short, wholeY = false, mark = null }) {
  const values = series.flatMap((each) => each.values).filter((value) => value !== null);
  const bottom = zero ? Math.min(0, ...values) : Math.min(...values);
  const high = Math.max(...values);
  const top = high + 0.06 * (high - bottom || 1);
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const margin = 0.02 * (last - first) || 0.5;
  const plot = chartPlot(host, [first - margin, last + margin], [top, bottom]);
  drawAxis(plot, "left", ticks(bottom, top, 5, wholeY), label, yTitle, true);
  drawAxis(plot, "bottom", ticks(first, last, plot.box.width / 50, true), (v) => number(v, 0), xTitle);
  if (mark !== null) {
    const x = plot.x(mark);
    plot.area.append(svg("path", { class: "chosen", d: `M${x} ${plot.box.top}v${plot.box.height}` }));
  }
  for (const { values: ys, colour, shape, width: stroke = 1.6, opacity = 1 } of series) {
    const points = ys.map((y, i) => y === null ? null : [plot.x(xs[i]), plot.y(y)]);
    const known = points.filter(Boolean);
    if (!known.length) continue;
    const style = `stroke:${colour};stroke-width:${stroke};opacity:${opacity}`;
    plot.area.append(svg("path", { class: "curve", d: path(known), style }));
    const marker = shape === undefined && known.length < 12 ? 0 : shape ?? null;
    if (marker !== null) {
      const d = known.map(([x, y]) => MARKS[marker](x, y)).join("");
      plot.root.append(svg("path", { d, style: `fill:${colour};opacity:${opacity}` }));
    }
  }
}

const depths = () => data.layers.map((_, i) => i + 1);
const deepestDims = () => Math.max(...data.layers.map(dims));
const axisName = (axis) => (deepestDims() === 1 ? "size" : AXES[deepestDims()][axis]);

/* Add all figures before drawing the first one, because their width depends on their number. */
function drawFigures(section, drawings) {
  const figures = Object.keys(drawings).map((name) => addFigure(section, name));
  Object.values(drawings).forEach((draw, i) => draw(...figures[i]));
}

function drawDepth(section) {
  const drawings = { sizes: drawSizesByDepth };
  if (data.layers.some((layer) => layer.share !== null)) drawings.work = drawWorkByDepth;
  drawings.frequency = drawFrequencyByDepth;
  drawFigures(section, drawings);
}

function drawSizesByDepth(host, caption) {
  const axes = Array.from({ length: deepestDims() }, (_, axis) => axis);
  const series = axes.map((axis) => ({
    values: data.layers.map((layer) => layer.extent[axis] ?? null), colour: LINES[axis], shape: axis,
  }));
  const grids = axes.map((axis) => ({
    values: data.layers.map((layer) => layer.grid[axis] ?? null),
    colour: "var(--muted)", shape: null, width: 1, opacity: 0.5,
  }));
  const titles = { xTitle: "layer", yTitle: "taps" };
  drawLines(host, depths(), [...grids, ...series], { ...titles, wholeY: true, mark: state.layer + 1 });
  caption.append(strong("Learned kernel size"), " of every layer.",
    legend(...axes.map((axis) => legendEntry(axisName(axis), "curve", `stroke:${LINES[axis]}`)),
      legendEntry("largest possible size", "axis", "stroke:var(--muted)")));
}

function drawWorkByDepth(host, caption) {
  const top = 1.06 * Math.max(...data.layers.map((layer) => layer.share ?? 0)) || 1;
  const plot = chartPlot(host, [0.4, data.layers.length + 0.6], [top, 0]);
  drawAxis(plot, "left", ticks(0, top, 5), (v) => `${short(100 * v)} %`, "", true);
  drawAxis(plot, "bottom", ticks(1, data.layers.length, plot.box.width / 50, true), (v) => number(v, 0), "layer");
  data.layers.forEach((layer, i) => {
    const [left, right, top] = [plot.x(i + 0.65), plot.x(i + 1.35), plot.y(layer.share ?? 0)];
    plot.area.append(svg("rect", {
      class: i === state.layer ? "bar current" : "bar", x: left, y: top, width: right - left, height: plot.y(0) - top,
    }));
  });
  caption.append(strong("Multiply-adds"),
    " of every layer at its current kernel size, as a share of all convolutions and linear layers.");
}

function drawFrequencyByDepth(host, caption) {
  const highest = (values) => (values ? Math.max(...values) : null);
  const bounds = data.layers.map((layer) => highest(layer.versions[OWN].bound));
  const series = [
    { values: data.layers.map((layer) => highest(layer.measured)), colour: "var(--first)", shape: 0 },
    { values: bounds, colour: "var(--bound)", shape: 2 },
    { values: data.layers.map(() => 1), colour: "var(--ink)", shape: null, width: 1.2 },
  ];
  drawLines(host, depths(), series, { xTitle: "layer", yTitle: "frequency (1 = Nyquist)", mark: state.layer + 1 });
  caption.append(strong("Frequencies"), " of every kernel, along the axis where they are highest.",
    legend(legendEntry("99 % of the energy is below this", "curve"),
      bounds.some((bound) => bound !== null) && legendEntry("upper bound", "curve", "stroke:var(--bound)"),
      legendEntry("Nyquist frequency", "curve", "stroke:var(--ink)")));
}

/* --- training --- */

const SPLIT_LINES = { train: LINES[0], validation: LINES[1], val: LINES[1], valid: LINES[1], test: LINES[2] };

function drawTraining(section) {
  const { metrics, sizes } = data.history;
  const drawings = {};
  for (const [metric, splits] of Object.entries(metrics)) {
    drawings[`metric-${metric}`] = (host, caption) => drawMetric(host, caption, metric, splits);
  }
  const names = data.layers.map((layer) => layer.name).filter((name) => Object.hasOwn(sizes, name));
  for (let axis = 0; names.length && axis < deepestDims(); axis++) {
    drawings[`sizes-${axis}`] = (host, caption) => drawSizesOverTime(host, caption, names, axis);
  }
  drawFigures(section, drawings);
}

function drawMetric(host, caption, metric, splits) {
  const { at, count } = data.history;
  const share = metric.endsWith("accuracy");
  const series = Object.entries(splits).map(([split, values]) =>
    ({ split, values, colour: SPLIT_LINES[split] ?? "var(--ink)" }));
  const label = share ? (value) => `${short(100 * value)} %` : short;
  drawLines(host, at, series, { xTitle: count, zero: !share, label });
  const best = series.filter(({ split }) => split !== "train").map(({ split, values }) => {
    const known = values.filter((value) => value !== null);
    const value = share ? Math.max(...known) : Math.min(...known);
    return ` Best ${split}: ${share ? `${number(100 * value, 2)} %` : short(value)}.`;
  });
  const name = metric[0].toUpperCase() + metric.slice(1).replaceAll("_", " ");
  caption.append(strong(name), " during training.", ...best,
    legend(...series.map(({ split, colour }) => legendEntry(split || metric, "curve", `stroke:${colour}`))));
}

function drawSizesOverTime(host, caption, names, axis) {
  const { history } = data;
  const chosen = data.layers[state.layer].name;
  const shade = (i) => 0.3 + (0.7 * i) / Math.max(1, names.length - 1);
  const series = names.map((name, i) => ({
    name, values: history.sizes[name].map((size) => size?.[axis] ?? null),
    colour: name === chosen ? "var(--chosen)" : colourOf("energy", shade(i)),
    width: name === chosen ? 3 : 1.4,
  }));
  series.sort((a, b) => (a.name === chosen) - (b.name === chosen));
  drawLines(host, history.at, series, { xTitle: history.count, yTitle: "taps", wholeY: true });
  caption.append(strong(`Kernel ${axisName(axis)}`), " during training.", legend(
    legendEntry("first layer", "curve", `stroke:${colourOf("energy", shade(0))}`),
    names.length > 1 && legendEntry("last layer", "curve", `stroke:${colourOf("energy", shade(names.length - 1))}`),
    legendEntry(chosen, "curve", "stroke:var(--chosen);stroke-width:3")));
}
