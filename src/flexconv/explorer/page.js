/* The controls, and the functions that redraw what they change. */

const CONTROLS = ["resolution", "plane", "whole", "theme"];
const control = Object.fromEntries(CONTROLS.map((id) => [id, element(id)]));
const panels = networks.map(makePanel);

/* --- setup --- */

function buildHeader() {
  document.title = data.title;
  element("title").textContent = networks.length > 1 ? "Two networks" : data.title;
  element("networks").replaceChildren(...networks.map((network, index) => {
    const facts = [
      network.architecture,
      `${network.layers.length} FlexConv layer${network.layers.length === 1 ? "" : "s"}`,
      `${network.parameters.toLocaleString("en")} parameters`,
      network.input && `for inputs of ${times(network.input)}`,
    ];
    const card = text("div", "network");
    if (networks.length > 1) card.append(text("p", "network-title", ...badge(index), network.title));
    if (network.accuracy) card.append(text("p", "accuracy", ...accuracyText(network.accuracy)));
    card.append(text("p", "facts", facts.filter(Boolean).join(" · ")));
    return card;
  }));
}

/* "98.61 % of 360 test samples, after the last epoch (14)" */
function accuracyText({ text: words, value, split, samples, epoch, chosen }) {
  if (words) return [words];
  const of = samples ? ` of ${samples.toLocaleString("en")} ${split} samples` : ` ${split} accuracy`;
  const known = Number.isFinite(epoch);
  const when = {
    last: known ? `, after the last epoch (${epoch})` : ", after the last epoch",
    validation: `, at the epoch with the best validation accuracy${known ? ` (${epoch})` : ""}`,
    test: `, at the epoch with the best test accuracy${known ? ` (${epoch})` : ""}`,
    "so far": known ? `, after epoch ${epoch}` : "",
  }[chosen] ?? (known ? `, after ${epoch} epochs` : "");
  return [strong(`${number(100 * value, 2)} %`), of + when];
}

function buildLayers() {
  const list = document.createElement("ol");
  layerNames.forEach((layerName, index) => {
    const radio = Object.assign(document.createElement("input"), { type: "radio", name: "layer", value: index });
    radio.addEventListener("change", () => chooseLayer(index));
    const name = text("span", "name", text("span", "index", index + 1), layerName);
    name.title = layerName;
    const body = text("span", "", name);
    networks.forEach((network, which) => body.append(...layerSize(layerAt(network, index), which)));
    const picture = document.createElement("canvas");
    picture.setAttribute("aria-hidden", "true");
    const label = document.createElement("label");
    label.append(radio, picture, body);
    list.append(text("li", "", label));
  });
  element("layers").append(list);
}

/* The size of a layer in the list, and a bar: the side of the kernel relative to that of the grid. */
function layerSize(layer, which) {
  const size = text("span", "size", LETTERS[which] && `${LETTERS[which]} `);
  if (!layer) return [text("span", "size", `${LETTERS[which]} –`)];
  size.append(`${times(layer.extent)} of ${times(layer.grid)}`);
  if (layer.aliased) size.append(" ", aliasedMark(layer));
  const filled = document.createElement("i");
  const share = layer.extent.map((taps, axis) => taps / layer.grid[axis]);
  filled.style.width = `${100 * share.reduce((a, b) => a * b, 1) ** (1 / share.length)}%`;
  if (networks.length > 1) filled.style.background = NETWORK_COLOURS[which];
  return [size, text("span", "bar", filled)];
}

/* The mark of a layer whose energy beyond the Nyquist frequency costs accuracy at other resolutions. */
function aliasedMark(layer) {
  const mark = text("span", "aliased", "aliased");
  mark.title = `${short(100 * layer.folded)} % of the energy lies beyond 1.5 × Nyquist, so the layer depends on the resolution`;
  return mark;
}

function buildControls() {
  element("panels").replaceChildren(...panels.map((panel) => panel.root));
  element("panels").classList.toggle("two", panels.length > 1);
  control.resolution.max = SCALES.length - 1;
  element("resolutions").replaceChildren(...SCALES.map((_, i) => new Option("", i)));
  element("stops").replaceChildren(...SCALES.map((scale) => text("span", "", `×${short(scale)}`)));
  const listen = (what, event, read) => control[what].addEventListener(event, () => {
    read(control[what]);
    writeAddress();
    drawLayer();
  });
  listen("resolution", "input", (slider) => { state.version = Number(slider.value); });
  listen("plane", "change", (select) => { state.plane = select.selectedIndex; });
  listen("whole", "change", (box) => { state.whole = box.checked; drawCharts(); });
  control.theme.addEventListener("click", () => {
    chooseTheme(theme() === "dark" ? "light" : "dark");
    writeAddress();
    drawAll();
  });
  preference.addEventListener("change", drawAll);
  window.addEventListener("popstate", showAddress); // also after the reader has edited the address
}

/* --- selection --- */

function chooseLayer(index) {
  selectLayer(index);
  writeAddress(true);
  drawLayer();
  drawCharts();
}

function showAddress() {
  readAddress();
  drawAll();
  showChosen();
  showSample();
  showSeriesSample();
}

/* Scroll the list of layers, not the page, to the selected layer. */
function showChosen() {
  const list = document.querySelector("#layers ol");
  const [item, whole] = [list.children[state.layer], list].map((node) => node.getBoundingClientRect());
  if (item.top < whole.top || item.bottom > whole.bottom) {
    list.scrollTop += (item.top + item.bottom - whole.top - whole.bottom) / 2;
  }
}

/* --- drawing --- */

function drawControls() {
  const scale = SCALES[state.version];
  const shown = networks.map((network, index) => [network, current(index)]);
  const size = ([network, now], index) => {
    const input = network.input && `input ${times(network.input.map((each) => Math.round(each * scale)))}`;
    const words = [input, now && `kernel ${times(now.version.extent)} taps`].filter(Boolean);
    return named(index, words.join(networks.length > 1 ? ", " : " · "));
  };
  const words = [`×${short(scale)}`, ...shown.map(size)].join(" · ");
  element("resolution-text").textContent = words;
  control.resolution.value = state.version;
  control.resolution.setAttribute("aria-valuetext", words);
  control.whole.checked = state.whole;
  const { layer } = shown.map(([, now]) => now).find(Boolean);
  const { views } = layer.versions[OWN];
  const names = AXES[dims(layer)];
  control.plane.replaceChildren(...views.map((view) => new Option(view.axes.map((axis) => names[axis]).join(" × "))));
  control.plane.selectedIndex = state.plane;
  element("plane-label").hidden = views.length === 1;
}

function drawLayer() {
  element("layer-name").textContent = layerNames[state.layer];
  element("reason").textContent = state.layer === openingLayer() ? data.opening.reason : "";
  document.querySelectorAll("#layers input").forEach((radio, i) => { radio.checked = i === state.layer; });
  drawControls();
  for (const panel of panels) {
    listChannels(panel);
    drawPanel(panel);
  }
}

function drawCharts() {
  for (const id of ["depth", "field", "training"]) element(id).replaceChildren();
  drawDepth(element("depth"));
  element("field-section").hidden = !networks.some((network) => network.field);
  drawFields(element("field"));
  element("training-section").hidden = !networks.some((network) => network.history);
  if (!element("training-section").hidden) drawTraining(element("training"));
}

function drawAll() {
  control.theme.textContent = theme() === "dark" ? "Light colors" : "Dark colors";
  const first = (index) => networks.map((network) => layerAt(network, index)).find(Boolean);
  document.querySelectorAll("#layers canvas").forEach((canvas, i) => drawThumbnail(canvas, first(i)));
  drawLayer();
  drawCharts();
}

buildHeader();
buildLayers();
buildControls();
buildTable();
buildTrial();
buildSeries();
showAddress();

let drawnWidth = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === drawnWidth) return;
  drawnWidth = document.body.clientWidth;
  drawLayer();
  drawCharts();
}).observe(document.body);

/* For the console of the browser, and for tests. */
window.explorer = {
  data, state, current, spectrum1d, spectrum2d, figurePng, evaluate, standardise, seenPixels, samplePicture, resizePlane,
  readSeries,
};
