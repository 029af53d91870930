/* The controls, and the functions that redraw what they change. */

const host = {
  kernel: element("kernel"),
  kernelCanvas: element("kernel-canvas"),
  spectrum: element("spectrum"),
  spectrumCanvas: element("spectrum-canvas"),
  pairs: element("pairs"),
  pairsCanvas: element("pairs-canvas"),
};
const CONTROLS = ["resolution", "out", "in", "plane", "whole", "theme"];
const control = Object.fromEntries(CONTROLS.map((id) => [id, element(id)]));

/* --- setup --- */

function buildHeader() {
  document.title = data.title;
  element("title").textContent = data.title;
  const facts = [
    data.architecture,
    `${data.layers.length} FlexConv layer${data.layers.length === 1 ? "" : "s"}`,
    `${data.parameters.toLocaleString("en")} parameters`,
    data.input && `for inputs of ${times(data.input)}`,
  ];
  element("facts").textContent = facts.filter(Boolean).join(" · ");
}

function buildLayers() {
  const list = document.createElement("ol");
  data.layers.forEach((layer, index) => {
    const radio = Object.assign(document.createElement("input"), {
      type: "radio", name: "layer", value: index, checked: index === state.layer,
    });
    radio.addEventListener("change", () => chooseLayer(index));
    const text = (className, textContent) => Object.assign(document.createElement("span"), { className, textContent });
    const name = text("name", "");
    name.append(text("index", index + 1), layer.name);
    name.title = layer.name;
    const bar = text("bar", "");
    const filled = document.createElement("i");
    const share = layer.extent.map((size, axis) => size / layer.grid[axis]);
    filled.style.width = `${100 * share.reduce((a, b) => a * b, 1) ** (1 / share.length)}%`;
    bar.append(filled);
    const body = document.createElement("span");
    body.append(name, text("size", `${times(layer.extent)} of ${times(layer.grid)}`), bar);
    const label = document.createElement("label");
    const picture = document.createElement("canvas");
    picture.setAttribute("aria-hidden", "true");
    label.append(radio, picture, body);
    const item = document.createElement("li");
    item.append(label);
    list.append(item);
  });
  element("layers").append(list);
}

function buildControls() {
  control.resolution.max = data.scales.length - 1;
  control.resolution.value = state.version;
  element("resolutions").replaceChildren(...data.scales.map((_, i) => new Option("", i)));
  element("stops").replaceChildren(...data.scales.map((scale) =>
    Object.assign(document.createElement("span"), { textContent: `×${short(scale)}` })));
  const listen = (what, event, read) =>
    control[what].addEventListener(event, () => { read(control[what]); drawLayer(); });
  listen("resolution", "input", (slider) => { state.version = Number(slider.value); });
  listen("out", "change", (select) => { state.out = select.selectedIndex; });
  listen("in", "change", (select) => { state.in = select.selectedIndex; });
  listen("plane", "change", (select) => { state.plane = select.selectedIndex; });
  listen("whole", "change", (box) => { state.whole = box.checked; });
  control.theme.addEventListener("click", () => { toggleTheme(); drawAll(); });
  preference.addEventListener("change", drawAll);
  host.pairsCanvas.addEventListener("keydown", movePair);
  host.pairsCanvas.addEventListener("pointerdown", pointAtPair);
  host.kernelCanvas.addEventListener("pointermove", readTap);
  host.kernelCanvas.addEventListener("pointerleave", () => { element("tap").textContent = ""; });
}

/* --- selection --- */

function chooseLayer(index) {
  state.layer = index;
  const layer = data.layers[index];
  [state.out, state.in] = strongestPair(layer);
  state.plane = 0;
  const options = (channels) => channels.map((channel) => new Option(channel, channel));
  control.out.replaceChildren(...options(layer.outs));
  control.in.replaceChildren(...options(layer.ins));
  const views = layer.versions[OWN].views;
  const names = AXES[dims(layer)];
  control.plane.replaceChildren(...views.map((view) => new Option(view.axes.map((axis) => names[axis]).join(" × "))));
  element("plane-label").hidden = views.length === 1;
  drawLayer();
  drawCharts();
}

function choosePair(out, input) {
  const layer = data.layers[state.layer];
  state.out = Math.min(Math.max(out, 0), layer.outs.length - 1);
  state.in = Math.min(Math.max(input, 0), layer.ins.length - 1);
  drawLayer();
}

function movePair(event) {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  choosePair(state.out + step[0], state.in + step[1]);
}

function pointAtPair(event) {
  const { width, height } = pairCells(data.layers[state.layer], host.pairs);
  choosePair(Math.floor((event.offsetY - PAIR_MARGIN) / (height + PAIR_GAP)),
    Math.floor((event.offsetX - PAIR_MARGIN) / (width + PAIR_GAP)));
}

/* Show the position and the value of the tap under the pointer. */
function readTap(event) {
  const { version, view, extent, kernel } = current();
  const { offsetWidth, offsetHeight } = host.kernelCanvas;
  const row = Math.min(extent[0] - 1, Math.floor((event.offsetY / offsetHeight) * extent[0]));
  const column = Math.min(extent[1] - 1, Math.floor((event.offsetX / offsetWidth) * extent[1]));
  const [y, x] = [row, column].map((tap, i) => version.first[view.axes[i]] + tap * version.step[view.axes[i]]);
  element("tap").textContent = `(${short(y)}, ${short(x)}): ${short(kernel[row * extent[1] + column])}`;
}

/* --- drawing --- */

function drawResolution({ version }) {
  const scale = data.scales[state.version];
  const input = data.input && `input ${times(data.input.map((size) => Math.round(size * scale)))}`;
  const text = [`×${short(scale)}`, input, `kernel ${times(version.extent)} taps`].filter(Boolean).join(" · ");
  element("resolution-text").textContent = text;
  control.resolution.value = state.version;
  control.resolution.setAttribute("aria-valuetext", text);
}

function drawLayer() {
  const now = current();
  const { layer, view } = now;
  element("layer-name").textContent = layer.name;
  element("layer-kind").textContent = `${layer.generator}, ${layer.channels[0]} → ${layer.channels[1]} channels`;
  control.out.selectedIndex = state.out;
  control.in.selectedIndex = state.in;
  drawNumbers(now);
  drawResolution(now);
  const flat = view.axes.length === 1;
  for (const canvas of [host.kernelCanvas, host.spectrumCanvas]) canvas.hidden = flat;
  for (const scale of ["kernel-scale", "spectrum-scale"]) element(scale).replaceChildren();
  const peak = flat ? drawKernelCurve(host.kernel, now) : drawKernelImage(host.kernel, host.kernelCanvas, now);
  if (flat) drawSpectrumCurve(host.spectrum, now);
  else drawSpectrumImage(host.spectrum, host.spectrumCanvas, now);
  drawPairs(host.pairs, host.pairsCanvas, now);
  describe(now, peak);
}

function drawCharts() {
  for (const id of ["depth", "training"]) element(id).replaceChildren();
  drawDepth(element("depth"));
  element("training-section").hidden = !data.history;
  if (data.history) drawTraining(element("training"));
}

function drawAll() {
  control.theme.textContent = theme() === "dark" ? "Light colours" : "Dark colours";
  document.querySelectorAll("#layers canvas").forEach((canvas, i) => drawThumbnail(canvas, data.layers[i]));
  drawLayer();
  drawCharts();
}

buildHeader();
buildLayers();
buildControls();
chooseLayer(0);
drawAll();

let drawnWidth = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === drawnWidth) return;
  drawnWidth = document.body.clientWidth;
  drawLayer();
  drawCharts();
}).observe(document.body);

/* For the console of the browser, and for tests. */
window.explorer = { data, state, current, spectrum1d, spectrum2d };
