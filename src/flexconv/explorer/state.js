/* The data of the page, and the current selection. */

const data = JSON.parse(document.getElementById("data").textContent);
const OWN = data.scales.indexOf(1); // index of the model's own resolution
const AXES = { 1: ["position"], 2: ["height", "width"], 3: ["depth", "height", "width"] };

/* Indices into data.layers, into a layer's outs, ins and versions, and into a version's views. */
const state = { layer: 0, out: 0, in: 0, version: OWN, plane: 0, whole: false };

const element = (id) => document.getElementById(id);
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

/* Everything that is shown at the moment. */
function current() {
  const layer = data.layers[state.layer];
  const version = layer.versions[state.version];
  const view = version.views[Math.min(state.plane, version.views.length - 1)];
  const pair = pairIndex(layer, state.out, state.in);
  return {
    layer, version, view, pair,
    extent: view.axes.map((axis) => version.extent[axis]),
    kernel: unpack(view.slice, pair),
    transformed: unpack(view.projection ?? view.slice, pair),
  };
}
