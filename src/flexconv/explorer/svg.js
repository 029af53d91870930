/* SVG plots: elements, axes, ticks. */

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const path = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

/* About `about` round numbers between low and high. */
function ticks(low, high, about, whole = false) {
  const raw = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(whole ? 1 : 0, power * [1, 2, 5, 10].find((factor) => factor * power >= raw));
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

let clips = 0; // every clip path needs a unique id

/* Create a plot in a host element. `size` is [width, height] of the plot area, inside margins {left, right, top,
   bottom}. Returns { root, area, box, x, y }: x and y map data to pixels, `area` is a clipped group, `box` its position. */
function makePlot(host, size, margins, xRange, yRange) {
  const [width, height] = size;
  const full = [width + margins.left + margins.right, height + margins.top + margins.bottom];
  const id = `clip-${clips++}`;
  const area = svg("g", { "clip-path": `url(#${id})` });
  const view = { viewBox: `0 0 ${full[0]} ${full[1]}`, width: full[0], height: full[1], "aria-hidden": "true" };
  const root = svg("svg", view,
    svg("clipPath", { id }, svg("rect", { x: margins.left, y: margins.top, width, height })), area);
  host.querySelector(":scope > svg")?.remove();
  host.append(root);
  return {
    root, area,
    x: (value) => margins.left + ((value - xRange[0]) / (xRange[1] - xRange[0])) * width,
    y: (value) => margins.top + ((value - yRange[0]) / (yRange[1] - yRange[0])) * height,
    box: { left: margins.left, top: margins.top, width, height },
  };
}

/* Draw ticks with labels along the left or the bottom edge, and the title of the axis. */
function drawAxis(plot, side, values, label, title, grid = false) {
  const { left, top, width, height } = plot.box;
  const [right, bottom] = [left + width, top + height];
  for (const value of values) {
    if (side === "bottom") {
      const x = plot.x(value);
      plot.root.append(
        svg("path", { class: "axis", d: `M${x} ${bottom}v4` }),
        svg("text", { x, y: bottom + 15, "text-anchor": "middle" }, label(value)));
    } else {
      const y = plot.y(value);
      plot.root.prepend(svg("path", { class: "axis", d: grid ? `M${left} ${y}H${right}` : `M${left - 4} ${y}h4` }));
      plot.root.append(svg("text", { x: left - 7, y: y + 4, "text-anchor": "end" }, label(value)));
    }
  }
  if (side === "bottom") {
    plot.root.append(svg("text", { x: left + width / 2, y: bottom + 30, "text-anchor": "middle" }, title));
  } else if (title) {
    const [x, y] = [11, top + height / 2];
    plot.root.append(svg("text", { x, y, "text-anchor": "middle", transform: `rotate(-90 ${x} ${y})` }, title));
  }
}

/* Draw a line with a halo, which is visible on any image. */
function drawOver(plot, className, d) {
  plot.area.append(svg("path", { class: "halo", d }), svg("path", { class: className, d }));
}

/* An entry of a legend: a sample of the line and its meaning. */
function legendEntry(text, className, style = "") {
  const entry = document.createElement("span");
  entry.append(svg("svg", { viewBox: "0 0 16 7", "aria-hidden": "true" },
    svg("path", { class: className, style, d: "M0 3.5H16" })), text);
  return entry;
}

function legend(...entries) {
  const host = document.createElement("span");
  host.className = "legend";
  host.append(...entries.filter(Boolean));
  return host;
}

const strong = (text) => Object.assign(document.createElement("b"), { textContent: text });
