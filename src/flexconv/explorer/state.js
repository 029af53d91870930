/* The data of the page, and the current selection. */

const data = JSON.parse(document.getElementById("data").textContent);
const { networks } = data; // one, or two side by side
const SCALES = networks[0].scales;
const OWN = SCALES.indexOf(1); // index of the model's own resolution
const AXES = { 1: ["position"], 2: ["height", "width"], 3: ["depth", "height", "width"] };
const LETTERS = networks.length > 1 ? ["A", "B"] : [""]; // short names of the networks

/* The names of all layers. Layers of two networks belong together if they have the same name. */
const layerNames = [...new Set(networks.flatMap((network) => network.layers.map((layer) => layer.name)))];
const layerAt = (network, index) => network.layers.find((layer) => layer.name === layerNames[index]) ?? null;

/* Indices into layerNames, into the versions of a layer, into the views of a version; and for each network, the selected
   output and input channel as indices into the outs and ins of the layer. `sample` is [network, index] or null. */
const state = { layer: 0, version: OWN, plane: 0, whole: false, pairs: networks.map(() => [0, 0]), sample: null };

const element = (id) => document.getElementById(id);
/* An element with a class and content, text or other elements. */
const text = (tag, className, ...content) => {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...content);
  return node;
};
const times = (sizes) => sizes.join(" × ");

/* A number with `digits` decimals, and without −0. */
function number(value, digits) {
  return (Math.abs(value) < 0.5 / 10 ** digits ? 0 : value).toFixed(digits).replace("-", "−");
}

/* A number with three significant digits and without trailing zeros: 0.0123, 4.5, 1200. */
function short(value) {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  const text = digits > 6 ? value.toExponential(1) : value.toFixed(digits);
  return (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text).replace("-", "−");
}

const dims = (layer) => layer.extent.length;
const pairIndex = (layer, out, input) => out * layer.ins.length + input;

/* One row of a packed array, as numbers. */
function unpack(packed, row) {
  if (!packed.integers) {
    const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    packed.integers = Int16Array.from({ length: bytes.length / 2 }, (_, i) => view.getInt16(2 * i, true));
  }
  const size = packed.integers.length / packed.peaks.length;
  const factor = packed.peaks[row] / 32767;
  return Float64Array.from(packed.integers.subarray(row * size, (row + 1) * size), (value) => value * factor);
}

/* The pair of channels with the largest tap, which is selected first. */
function strongestPair(layer) {
  const { peaks } = layer.versions[OWN].views[0].slice;
  const best = peaks.indexOf(Math.max(...peaks));
  return [Math.floor(best / layer.ins.length), best % layer.ins.length];
}

/* Select a layer, and in each network the strongest of its channel pairs. */
function selectLayer(index) {
  state.layer = index;
  state.plane = 0;
  state.pairs = networks.map((network) => {
    const layer = layerAt(network, index);
    return layer ? strongestPair(layer) : [0, 0];
  });
}

const openingLayer = () => layerNames.indexOf(data.opening.layer);

/* Everything that is shown of a network at the moment; null if it has no such layer. */
function current(index = 0) {
  const network = networks[index];
  const layer = layerAt(network, state.layer);
  if (!layer) return null;
  const [out, input] = state.pairs[index];
  const version = layer.versions[state.version];
  const view = version.views[Math.min(state.plane, version.views.length - 1)];
  const pair = pairIndex(layer, out, input);
  return {
    index, network, layer, version, view, pair, out, in: input,
    extent: view.axes.map((axis) => version.extent[axis]),
    kernel: unpack(view.slice, pair),
    transformed: unpack(view.projection ?? view.slice, pair),
  };
}

/* The selected layers of all networks that have as many axes as `layer`, which share the axes of their plots. */
const comparable = (layer) => networks.map((network) => layerAt(network, state.layer))
  .filter((other) => other && dims(other) === dims(layer));
