/* The receptive field of a network. */

const FIELD_MARGINS = { left: 46, right: 8, top: 8, bottom: 34 };
const MAX_FIELD_WIDTH = "420px";

function drawFields(section) {
  const shown = networks.map((network, index) => [network.field, index]).filter(([field]) => field);
  const drawings = Object.fromEntries(shown.map(([field, index]) => [`field${LETTERS[index]}`, (host, caption) => {
    if (field.size.length === 1) drawFieldCurve(host, field);
    else drawFieldImage(host, field);
    describeField(host, caption, field, index);
  }]));
  drawFigures(section, drawings);
}

/* The range of an axis relative to the output position: the input or, zoomed out, also the theoretical field. */
function fieldSpan({ position, size, reach }, axis) {
  const input = [-position[axis] - 0.5, size[axis] - position[axis] - 0.5];
  if (!state.whole) return input;
  return [Math.min(input[0], -1.04 * reach[axis][0] - 0.5), Math.max(input[1], 1.04 * reach[axis][1] + 0.5)];
}

function drawFieldImage(host, field) {
  host.style.maxWidth = MAX_FIELD_WIDTH;
  const [ySpan, xSpan] = [fieldSpan(field, 0), fieldSpan(field, 1)];
  const widest = host.clientWidth - FIELD_MARGINS.left - FIELD_MARGINS.right;
  const unit = widest / Math.max(xSpan[1] - xSpan[0], ySpan[1] - ySpan[0]);
  const size = [unit * (xSpan[1] - xSpan[0]), unit * (ySpan[1] - ySpan[0])];
  const canvas = document.createElement("canvas");
  host.append(canvas);
  const plot = makePlot(host, size, FIELD_MARGINS, xSpan, ySpan);
  const values = unpack(field.values, 0);
  paint(canvas, values, ...field.size, "energy", 0, values.reduce((a, b) => Math.max(a, b), 0));
  const input = [0, 1].map((axis) => [-field.position[axis] - 0.5, field.size[axis] - field.position[axis] - 0.5]);
  place(canvas, plot, input[1], input[0]);
  drawAxisFrame(plot);
  const label = (value) => number(value, 0);
  drawAxis(plot, "bottom", ticks(...xSpan, size[0] / 45, true), label, "width, in pixels");
  drawAxis(plot, "left", ticks(...ySpan, size[1] / 40, true), label, "height");
  const circle = (radius) => path(Array.from({ length: 97 }, (_, i) => [
    plot.x(radius * Math.cos((2 * Math.PI * i) / 96)), plot.y(radius * Math.sin((2 * Math.PI * i) / 96)),
  ])) + "Z";
  drawOver(plot, "mask inner", circle(field.radius.half));
  drawOver(plot, "mask", circle(field.radius.most));
  const [[above, below], [left, right]] = field.reach;
  const corners = [[-left, -above], [right, -above], [right, below], [-left, below]];
  drawOver(plot, "bound", path(corners.map(([x, y]) => [plot.x(x), plot.y(y)])) + "Z");
}

function drawFieldCurve(host, field) {
  const xSpan = fieldSpan(field, 0);
  const values = unpack(field.values, 0);
  const peak = values.reduce((a, b) => Math.max(a, b), 0);
  const plot = chartPlot(host, xSpan, [1.06, 0]);
  const points = Array.from(values, (value, i) => [plot.x(i - field.position[0]), plot.y(value / peak)]);
  plot.area.append(svg("path", { class: "curve", d: path(highestPerPixel(points)) }));
  drawAxis(plot, "left", ticks(0, 1, 4), short, "", true);
  drawAxis(plot, "bottom", ticks(...xSpan, plot.box.width / 60, true), (v) => number(v, 0),
    "time steps relative to the output");
  const line = (x) => path([[plot.x(x), plot.y(0)], [plot.x(x), plot.y(1.06)]]);
  for (const sign of field.reach[0][1] ? [-1, 1] : [-1]) {
    drawOver(plot, "mask inner", line(sign * field.radius.half));
    drawOver(plot, "mask", line(sign * field.radius.most));
  }
  drawOver(plot, "bound", field.reach[0].filter(Boolean).map((_, side) =>
    line((side ? 1 : -1) * field.reach[0][side])).join(""));
}

function describeField(host, caption, field, index) {
  const unit = field.size.length === 1 ? "time steps" : "pixels";
  const whole = times(field.reach.map(([before, after]) => Math.round(before + after + 1)));
  const outside = !state.whole && field.reach.some(([before, after], axis) =>
    before > field.position[axis] && after >= field.size[axis] - field.position[axis] - 1);
  const causal = field.reach.every(([, after]) => after === 0);
  caption.append(...badge(index), strong("Effective receptive field"),
    ` of the ${causal ? "last output" : "output at the center"}, before pooling: how much it changes with every sample of `,
    `the input. It is the root mean square gradient over ${field.samples} ${field.noise ? "inputs of noise" : "samples"}.`,
    legend(legendEntry(`half of it is within ${short(field.radius.half)} ${unit}`, "mask inner"),
      legendEntry(`90 % is within ${short(field.radius.most)} ${unit}`, "mask"),
      legendEntry(`theoretical, by the kernel sizes: ${whole} ${unit}${outside ? " (outside the plot)" : ""}`, "bound")));
  host.setAttribute("aria-label", `Effective receptive field. Half of it is within ${short(field.radius.half)} ${unit}, `
    + `90 % within ${short(field.radius.most)} ${unit}. The theoretical field has ${whole} ${unit}`);
  const title = networks[index].title;
  addDownloads(host.closest("figure"), () => ({
    label: "the receptive field", name: fileName(title, "receptive-field"), heading: title, rows: fieldRows(field),
  }));
}

/* The field as rows [position relative to the output along each axis, value]. */
function fieldRows({ size, position, values }) {
  const names = AXES[size.length];
  const rows = Array.from(unpack(values, 0), (value, i) => (size.length === 1
    ? [i - position[0], value]
    : [Math.floor(i / size[1]) - position[0], (i % size[1]) - position[1], value]));
  return [[...names, "value"], ...rows];
}
