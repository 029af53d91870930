/* Plots of 1D kernels and their spectra. */

const CURVE_MARGINS = { left: 52, right: 10, top: 10, bottom: 36 };
const MAX_STEMS = 90; // with more taps, only the curve is drawn

function curvePlot(host, xRange, yRange) {
  const width = host.clientWidth - CURVE_MARGINS.left - CURVE_MARGINS.right;
  return makePlot(host, [width, Math.min(320, 0.72 * width)], CURVE_MARGINS, xRange, yRange);
}

function drawKernelCurve(host, { layer, version, kernel }) {
  const xSpan = span(layer, 0);
  const peak = kernel.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
  const plot = curvePlot(host, xSpan, [1.08 * peak, -1.08 * peak]);
  const at = (tap) => version.first[0] + tap * version.step[0];
  if (layer.mask) plot.area.append(svg("path", { class: "mask-area", d: maskShape(plot, layer.mask, xSpan, peak) }));
  plot.area.append(svg("path", { class: "zero", d: path(xSpan.map((x) => [plot.x(x), plot.y(0)])) }));
  const points = Array.from(kernel, (value, tap) => [plot.x(at(tap)), plot.y(value)]);
  if (kernel.length <= MAX_STEMS) {
    const stems = points.map(([x, y]) => `M${x} ${plot.y(0)}V${y}`).join("");
    plot.area.append(svg("path", { class: "curve", d: stems, "stroke-opacity": 0.45 }));
    for (const [cx, cy] of points) plot.area.append(svg("circle", { class: "tap", cx, cy, r: 2.4 }));
  } else {
    plot.area.append(svg("path", { class: "curve", d: path(points) }));
  }
  drawAxisFrame(plot);
  const title = "taps relative to the current sample";
  drawAxis(plot, "bottom", ticks(...xSpan, plot.box.width / 60, true), (v) => number(v, 0), title);
  drawAxis(plot, "left", ticks(-peak, peak, 4), short, "");
  return peak;
}

/* The area between the mask and its negative, scaled to the peak of the kernel. */
function maskShape(plot, mask, [low, high], peak) {
  const upper = Array.from({ length: 161 }, (_, i) => {
    const x = low + ((high - low) * i) / 160;
    return [x, peak * Math.exp(-0.5 * ((x - mask.centre[0]) / mask.shape[0][0]) ** 2)];
  });
  const lower = upper.map(([x, y]) => [x, -y]).reverse();
  return path([...upper, ...lower].map(([x, y]) => [plot.x(x), plot.y(y)])) + "Z";
}

function drawSpectrumCurve(host, { layer, version, transformed }) {
  const range = frequencyRange(layer);
  const plot = curvePlot(host, [0, range], [2, FLOOR]);
  const values = decibels(spectrum1d(transformed));
  const half = values.length / 2;
  const points = Array.from(values.slice(half), (value, k) => [plot.x((k / half) * version.nyquist[0]), plot.y(value)]);
  plot.area.append(svg("path", { class: "curve", d: path(highestPerPixel(points)) }));
  drawAxisFrame(plot);
  const line = (frequency) => path([[plot.x(frequency), plot.y(2)], [plot.x(frequency), plot.y(FLOOR)]]);
  if (state.version !== OWN) drawOver(plot, "now", line(version.nyquist[0]));
  drawOver(plot, "nyquist", line(1));
  if (version.bound) drawOver(plot, "bound", line(version.bound[0]));
  drawAxis(plot, "bottom", ticks(0, range, plot.box.width / 60), short, "frequency (1 = Nyquist)");
  drawAxis(plot, "left", ticks(FLOOR, 0, 5), (v) => number(v, 0), "dB", true);
}

/* Keep the highest point per pixel column of a curve, which may have more points than the screen has columns. */
function highestPerPixel(points) {
  const columns = new Map();
  for (const [x, y] of points) {
    const column = Math.round(x);
    if (!(columns.get(column)?.[1] <= y)) columns.set(column, [x, y]);
  }
  return [...columns.values()];
}
