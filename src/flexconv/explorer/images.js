/* Images of 2D and 3D kernels and their spectra, and thumbnails of all kernels. */

const IMAGE_MARGINS = { left: 46, right: 8, top: 8, bottom: 34 };

/* The range of an axis that is shown: the whole grid, or the part that the kernel covers at any resolution. */
function span(layer, axis) {
  const shown = comparable(layer);
  if (state.whole) {
    return [
      Math.min(...shown.map((each) => each.field[axis][0] - 0.5)),
      Math.max(...shown.map((each) => each.field[axis][1] + 0.5)),
    ];
  }
  const versions = shown.flatMap((each) => each.versions);
  return [
    Math.min(...versions.map((v) => v.first[axis] - v.step[axis] / 2)),
    Math.max(...versions.map((v) => v.first[axis] + (v.extent[axis] - 0.5) * v.step[axis])),
  ];
}

/* Place a canvas at the coordinates of its data in a plot. */
function place(canvas, plot, [left, right], [top, bottom]) {
  const { box } = plot;
  const edges = [plot.x(left), plot.x(right), plot.y(top), plot.y(bottom)];
  Object.assign(canvas.style, {
    left: `${edges[0]}px`, top: `${edges[2]}px`, width: `${edges[1] - edges[0]}px`, height: `${edges[3] - edges[2]}px`,
    clipPath: `inset(${Math.max(0, box.top - edges[2])}px ${Math.max(0, edges[1] - box.left - box.width)}px ` +
      `${Math.max(0, edges[3] - box.top - box.height)}px ${Math.max(0, box.left - edges[0])}px)`,
  });
}

function drawKernelImage({ host, canvas, scale }, { layer, version, view, extent, kernel }) {
  const [rows, columns] = view.axes;
  const [ySpan, xSpan] = [span(layer, rows), span(layer, columns)];
  const widest = host.clientWidth - IMAGE_MARGINS.left - IMAGE_MARGINS.right;
  const unit = Math.min(widest / (xSpan[1] - xSpan[0]), widest / (ySpan[1] - ySpan[0]));
  const size = [unit * (xSpan[1] - xSpan[0]), unit * (ySpan[1] - ySpan[0])];
  const side = (widest - size[0]) / 2;
  const margins = { ...IMAGE_MARGINS, left: IMAGE_MARGINS.left + side, right: IMAGE_MARGINS.right + side };
  const plot = makePlot(host, size, margins, xSpan, ySpan);
  const peak = kernel.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  canvas.className = "";
  paint(canvas, kernel, extent[0], extent[1], "signed", -peak || -1, peak || 1);
  const edges = (axis, taps) => [-0.5, taps - 0.5].map((tap) => version.first[axis] + tap * version.step[axis]);
  const [xEdges, yEdges] = [edges(columns, extent[1]), edges(rows, extent[0])];
  place(canvas, plot, xEdges, yEdges);
  drawAxisFrame(plot);
  drawCrop(plot, xEdges, yEdges);
  const names = AXES[dims(layer)];
  const label = (value) => number(value, 0);
  drawAxis(plot, "bottom", ticks(...xSpan, size[0] / 45, true), label, `${names[columns]}, in taps`);
  drawAxis(plot, "left", ticks(...ySpan, size[1] / 40, true), label, size[1] > 90 ? names[rows] : "");
  if (layer.mask) {
    const outline = (radius) => path(ellipse(plot, layer.mask, view.axes, radius)) + "Z";
    if (layer.mask.radius !== null) drawOver(plot, "mask", outline(layer.mask.radius));
    drawOver(plot, "mask inner", outline(1));
  }
  drawScale(scale, "signed", short(-peak), short(peak));
  return peak;
}

/* The ellipse on which the mask equals exp(−r²/2). */
function ellipse(plot, mask, [rows, columns], radius) {
  return Array.from({ length: 97 }, (_, i) => {
    const angle = (2 * Math.PI * i) / 96;
    const [u, v] = [radius * Math.cos(angle), radius * Math.sin(angle)];
    const at = (axis) => mask.centre[axis] + mask.shape[axis][rows] * u + mask.shape[axis][columns] * v;
    return [plot.x(at(columns)), plot.y(at(rows))];
  });
}

function drawCrop(plot, [left, right], [top, bottom]) {
  const [x, y] = [plot.x(left), plot.y(top)];
  plot.area.append(svg("rect", { class: "crop", x, y, width: plot.x(right) - x, height: plot.y(bottom) - y }));
}

function drawAxisFrame(plot) {
  const { left, top, width, height } = plot.box;
  plot.root.append(svg("rect", { class: "axis", x: left, y: top, width, height }));
}

/* The upper end of the frequency axis, in units of the Nyquist frequency. It is the Nyquist frequency of the highest
   resolution. Zoomed out, the axis also includes the upper bound. It is shorter for 1D kernels of low frequency. */
function frequencyRange(layer) {
  const shown = comparable(layer);
  const largest = Math.max(...shown.flatMap((each) => each.versions.flatMap((v) => v.nyquist)));
  const highest = Math.max(...shown.flatMap((each) => each.versions[state.version].bound ?? each.measured));
  if (state.whole) return 1.08 * Math.max(largest, highest);
  return 1.08 * (dims(layer) === 1 && highest < 0.2 ? 3 * highest : largest);
}

function drawSpectrumImage({ host, canvas, scale }, { layer, version, view, extent, transformed }) {
  const [rows, columns] = view.axes;
  const range = frequencyRange(layer);
  const side = host.clientWidth - IMAGE_MARGINS.left - IMAGE_MARGINS.right;
  const plot = makePlot(host, [side, side], IMAGE_MARGINS, [-range, range], [-range, range]);
  const spectrum = spectrum2d(transformed, ...extent);
  canvas.className = "smooth";
  paint(canvas, decibels(spectrum.values), spectrum.rows, spectrum.columns, "energy", FLOOR, 0);
  const ends = (axis, count) => [-version.nyquist[axis] * (1 + 1 / count), version.nyquist[axis] * (1 - 1 / count)];
  place(canvas, plot, ends(columns, spectrum.columns), ends(rows, spectrum.rows));
  drawAxisFrame(plot);
  const marks = ticks(-range, range, side / 60);
  drawAxis(plot, "bottom", marks, short, `frequency along ${AXES[dims(layer)][columns]} (1 = Nyquist)`);
  drawAxis(plot, "left", marks, short, `frequency along ${AXES[dims(layer)][rows]}`);
  const box = (edges) => path([[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([x, y]) =>
    [plot.x(x * edges[columns]), plot.y(y * edges[rows])])) + "Z";
  if (state.version !== OWN) drawOver(plot, "now", box(version.nyquist));
  drawOver(plot, "nyquist", box(layer.extent.map(() => 1)));
  if (version.bound) drawOver(plot, "bound", box(version.bound));
  drawScale(scale, "energy", `${number(FLOOR, 0)} dB`, "0 dB");
}

/* --- thumbnails --- */

/* Draw one kernel in a box of a canvas context. `peak` has the strongest colour, or the full height of a curve. */
function drawSmall(context, layer, view, values, peak, [left, top, width, height]) {
  if (view.axes.length === 1) {
    context.beginPath();
    values.forEach((value, i) => {
      const x = left + ((i + 0.5) / values.length) * width;
      context.lineTo(x, top + height / 2 - (value / (peak || 1)) * height * 0.45);
    });
    context.strokeStyle = colourOf("signed", 0.12);
    context.lineWidth = 1.2;
    context.lineJoin = "round";
    context.stroke();
    return;
  }
  const [rows, columns] = view.axes.map((axis) => layer.versions[OWN].extent[axis]);
  const image = document.createElement("canvas");
  paint(image, values, rows, columns, "signed", -peak || -1, peak || 1);
  const unit = Math.min(width / columns, height / rows);
  const [x, y] = [left + (width - unit * columns) / 2, top + (height - unit * rows) / 2];
  context.imageSmoothingEnabled = false;
  context.drawImage(image, x, y, unit * columns, unit * rows);
}

/* A context that draws in CSS pixels and is sharp on high-resolution screens. */
function sizedContext(canvas, width, height) {
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  const context = canvas.getContext("2d");
  context.scale(density, density);
  return context;
}

function drawThumbnail(canvas, layer) {
  const box = [0, 0, 42, 42];
  const [view] = layer.versions[OWN].views;
  const pair = pairIndex(layer, ...strongestPair(layer));
  const context = sizedContext(canvas, 42, 42);
  context.fillStyle = colourOf("signed", 0.5);
  context.fillRect(...box);
  drawSmall(context, layer, view, unpack(view.slice, pair), view.slice.peaks[pair], box);
}

const PAIR_MARGIN = 6;
const PAIR_GAP = 3;

/* The size of a cell in the matrix of channel pairs: square for images, as wide as possible for curves. */
function pairCells(layer, host) {
  const room = host.clientWidth - 2 * PAIR_MARGIN + PAIR_GAP;
  const height = Math.min(110, room / Math.max(layer.outs.length, 3) - PAIR_GAP);
  const width = room / layer.ins.length - PAIR_GAP;
  if (dims(layer) === 1) return { width, height: Math.min(height, width) };
  return { width: Math.min(width, height), height: Math.min(width, height) };
}

function drawPairs(host, canvas, { layer, out: selectedOut, in: selectedIn }) {
  const cell = pairCells(layer, host);
  const { views } = layer.versions[OWN];
  const view = views[Math.min(state.plane, views.length - 1)];
  const peak = Math.max(...view.slice.peaks);
  const length = (count, size) => count * (size + PAIR_GAP) - PAIR_GAP + 2 * PAIR_MARGIN;
  const [width, height] = [length(layer.ins.length, cell.width), length(layer.outs.length, cell.height)];
  const context = sizedContext(canvas, width, height);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px`, position: "static" });
  layer.outs.forEach((_, out) => layer.ins.forEach((_, input) => {
    const left = PAIR_MARGIN + input * (cell.width + PAIR_GAP);
    const top = PAIR_MARGIN + out * (cell.height + PAIR_GAP);
    const box = [left, top, cell.width, cell.height];
    context.fillStyle = colourOf("signed", 0.5);
    context.fillRect(...box);
    drawSmall(context, layer, view, unpack(view.slice, pairIndex(layer, out, input)), peak, box);
    if (out !== selectedOut || input !== selectedIn) return;
    context.strokeStyle = getComputedStyle(document.body).color;
    context.lineWidth = 2;
    context.strokeRect(left - 2, top - 2, cell.width + 4, cell.height + 4);
  }));
}
