/* Save figures as PNG and their numbers as CSV. */

const PNG_SCALE = 2; // pixels of the picture per pixel of the page
const HEADING = 30; // height of the line above a saved figure

/* Add two buttons below a figure. `about` returns { label: what the figure shows, name: of the file, heading: above the
   picture, rows: of the CSV; the first one names the columns }. It is called when a button is pressed, because the figure may have changed. */
function addDownloads(figure, about) {
  const button = (label, save) => {
    const node = Object.assign(text("button", "download", label), { type: "button" });
    node.addEventListener("click", save);
    return node;
  };
  const buttons = text("span", "downloads",
    button("PNG", async () => save(await figurePng(figure, about().heading), `${about().name}.png`)),
    button("CSV", () => save(new Blob([toCsv(about().rows)], { type: "text/csv" }), `${about().name}.csv`)));
  for (const node of buttons.children) node.setAttribute("aria-label", `Save ${about().label} as ${node.textContent}`);
  figure.append(buttons);
}

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/* The name of a file without characters that file systems refuse. */
const fileName = (...words) => words.filter(Boolean).join("-").replace(/[^\p{L}\p{N}.]+/gu, "-").slice(0, 120);

function toCsv(rows) {
  const cell = (value) => {
    const words = typeof value === "number" ? String(Number(value.toPrecision(7))) : String(value ?? "");
    return /[",\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
  };
  return rows.map((row) => row.map(cell).join(",") + "\n").join("");
}

/* A figure as it is on the screen, with a heading → a promise of a PNG. */
async function figurePng(figure, heading) {
  const root = figureSvg(figure, heading);
  const [width, height] = ["width", "height"].map((name) => Math.ceil(PNG_SCALE * root.getAttribute(name)));
  const picture = new Image(width, height);
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(root))}`;
  await picture.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d").drawImage(picture, 0, 0, width, height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/* A figure as one SVG element: its plots, the canvases in them, and the words of its caption where they are. */
function figureSvg(figure, heading) {
  const frame = figure.getBoundingClientRect();
  const margin = 12;
  const bottom = Math.max(...[...figure.children].filter((node) => !node.matches(".downloads"))
    .map((node) => node.getBoundingClientRect().bottom));
  const size = { width: frame.width + 2 * margin, height: bottom - frame.top + HEADING + margin };
  const style = getComputedStyle(figure);
  const root = svg("svg", { ...size, xmlns: "http://www.w3.org/2000/svg", "font-family": style.fontFamily });
  const background = getComputedStyle(figure.closest("section")).backgroundColor;
  root.append(svg("rect", { ...size, fill: background }),
    svg("text", { x: margin, y: 20, fill: style.color, "font-size": 13, "font-weight": 600 }, heading));
  const at = (rect) => ({ x: rect.left - frame.left + margin, y: rect.top - frame.top + HEADING });
  for (const node of drawnParts(figure)) root.append(...partSvg(node, at));
  return root;
}

/* The canvases, the outermost SVG elements, the bars and the text nodes of a figure that are visible. */
function* drawnParts(node) {
  for (const child of node.childNodes) {
    if (child instanceof Element && child.matches(".bar, .bar i")) yield child;
    if (child instanceof Text || child instanceof SVGSVGElement || child instanceof HTMLCanvasElement) {
      if (child instanceof Text || child.checkVisibility()) yield child;
    } else if (child instanceof Element && !child.matches(".downloads, .readout")) {
      yield* drawnParts(child);
    }
  }
}

function partSvg(node, at) {
  if (node instanceof Text) return wordsSvg(node, at);
  const rect = node.getBoundingClientRect();
  const { width, height } = rect;
  if (node instanceof HTMLCanvasElement) {
    const { clipPath, imageRendering } = getComputedStyle(node);
    const style = `clip-path:${clipPath};image-rendering:${imageRendering}`;
    return [svg("image", { ...at(rect), width, height, style, href: node.toDataURL(), preserveAspectRatio: "none" })];
  }
  if (node instanceof HTMLElement) {
    return [svg("rect", { ...at(rect), width, height, rx: 3, fill: getComputedStyle(node).backgroundColor })];
  }
  const copy = node.cloneNode(true);
  copyStyle(node, copy);
  for (const [key, value] of Object.entries({ ...at(rect), width, height })) copy.setAttribute(key, value);
  return [copy];
}

const COPIED = ["stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linecap", "stroke-linejoin", "fill",
  "fill-opacity", "opacity", "font-size", "font-weight", "overflow"];

/* Write the style that the style sheet gives to an element into a copy of it, which has no style sheet. */
function copyStyle(from, to) {
  const style = getComputedStyle(from);
  to.setAttribute("style", COPIED.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  [...from.children].forEach((child, i) => copyStyle(child, to.children[i]));
}

/* Every word of a text node at its place on the screen. */
function wordsSvg(node, at) {
  const style = getComputedStyle(node.parentElement);
  const look = { fill: style.color, "font-size": style.fontSize, "font-weight": style.fontWeight };
  return [...node.data.matchAll(/\S+/g)].flatMap((word) => {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const rect = range.getBoundingClientRect();
    if (!rect.width) return [];
    const { x, y } = at(rect);
    return [svg("text", { x, y: y + 0.78 * rect.height, ...look }, word[0])];
  });
}

/* --- the numbers of figures --- */

/* The kernel of one channel pair as rows [position along each axis, value]. */
function kernelRows({ layer, version, view, extent }, values) {
  const names = view.axes.map((axis) => AXES[dims(layer)][axis]);
  const place = (axis, tap) => version.first[axis] + tap * version.step[axis];
  const rows = Array.from(values, (value, i) => (view.axes.length === 1
    ? [place(0, i), value]
    : [place(view.axes[0], Math.floor(i / extent[1])), place(view.axes[1], i % extent[1]), value]));
  return [[...names, "value"], ...rows];
}

/* The amplitudes of its spectrum as rows [frequency along each axis, in units of Nyquist, amplitude]. */
function spectrumRows({ layer, version, view, extent, transformed }) {
  const names = view.axes.map((axis) => `frequency_${AXES[dims(layer)][axis]}`);
  const frequency = (axis, k, count) => ((2 * k) / count - 1) * version.nyquist[axis];
  if (view.axes.length === 1) {
    const values = spectrum1d(transformed);
    return [[...names, "amplitude"], ...Array.from(values, (value, k) => [frequency(0, k, values.length), value])];
  }
  const { values, rows, columns } = spectrum2d(transformed, ...extent);
  return [[...names, "amplitude"], ...Array.from(values, (value, i) => [
    frequency(view.axes[0], Math.floor(i / columns), rows), frequency(view.axes[1], i % columns, columns), value,
  ])];
}

/* All shown channel pairs at the resolution of the model. */
function pairRows({ layer, view }) {
  const version = layer.versions[OWN];
  const own = version.views.find((each) => each.axes.join() === view.axes.join());
  const now = { layer, version, view: own, extent: own.axes.map((axis) => version.extent[axis]) };
  const pairs = layer.outs.flatMap((out, o) => layer.ins.map((input, i) => [out, input, pairIndex(layer, o, i)]));
  const tables = pairs.map(([out, input, pair]) =>
    kernelRows(now, unpack(own.slice, pair)).map((row, i) => (i ? [out, input, ...row] : row)));
  return [["output_channel", "input_channel", ...tables[0][0]], ...tables.flatMap((table) => table.slice(1))];
}

/* The series of a chart as columns. */
function seriesRows(series, xTitle) {
  const columns = series.filter((each) => each.name);
  const xs = [...new Set(columns.flatMap((each) => each.xs))].sort((a, b) => a - b);
  const layers = xTitle === "layer" ? (x) => [layerNames[x - 1]] : () => [];
  return [
    [xTitle, ...(xTitle === "layer" ? ["name"] : []), ...columns.map((each) => each.name)],
    ...xs.map((x) => [x, ...layers(x), ...columns.map((each) => each.values[each.xs.indexOf(x)] ?? null)]),
  ];
}
