/* The numbers and captions of the selected layer. */

function drawNumbers(host, { layer }) {
  const each = (values, digits) => values.map((value) => number(value, digits)).join(", ");
  const units = "The grid extends from −1 to 1 along every axis.";
  const entries = [{ name: "Kernel size", value: `${times(layer.extent)} of at most ${times(layer.grid)} taps` }];
  if (layer.mask) {
    entries.push({ name: "Center of the mask", value: each(layer.mean, 2), tooltip: units });
    entries.push({ name: "Standard deviation of the mask", value: each(layer.sigma, 2), tooltip: units });
  } else {
    entries.push({ name: "Mask", value: "none" });
  }
  const timesNyquist = (values) => `${values.map(short).join(", ")} × the Nyquist frequency`;
  if (layer.frequency) {
    const limits = layer.nyquist.map((limit) => number(limit, 2)).join(", ");
    const tooltip = "An upper bound. The kernel may have no energy there. In cycles per unit, the Nyquist frequency is "
      + `${limits}. ${units}`;
    const highest = layer.frequency.map((frequency, axis) => frequency / layer.nyquist[axis]);
    entries.push({ name: "Frequencies at most", value: timesNyquist(highest), tooltip });
  }
  const percent = (share) => `${share < 5e-4 ? "< 0.1" : number(100 * share, share < 0.00995 ? 1 : 0)} %`;
  const cost = layer.aliased ? ", which costs accuracy at other resolutions" : "";
  entries.push({
    name: "Energy beyond Nyquist",
    value: `${percent(layer.energy)}; beyond 1.5 × Nyquist: ${percent(layer.folded)}${cost}`,
    tooltip: "Measured on the kernel between its taps. What lies beyond 1.5 × Nyquist is folded into the lower half of "
      + "the band by sampling.",
    beyond: layer.aliased,
  });
  entries.push({ name: "99 % of the energy", value: `below ${timesNyquist(layer.measured)}` });
  entries.push({ name: "Parameters", value: layer.parameters.toLocaleString("en") });
  if (layer.share !== null) {
    entries.push({ name: "Multiply-adds", value: `${short(100 * layer.share)} % of the network` });
  }
  host.replaceChildren(...entries.map(({ name, value, tooltip = "", beyond = false }) => {
    const group = Object.assign(document.createElement("div"), { title: tooltip });
    group.append(Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: value, className: beyond ? "beyond" : "" }));
    return group;
  }));
}

/* Set the captions of the plots of a panel, and their descriptions for screen readers. */
function describe({ part, network }, now, peak) {
  const { layer, version } = now;
  const pair = `from input channel ${layer.ins[now.in]} to output channel ${layer.outs[now.out]}`;
  const of = networks.length > 1 ? ` of ${network.title}` : "";
  const name = (plot, text) => part[plot].setAttribute("aria-label", text);
  name("kernel", `Kernel of ${layer.name}${of} ${pair}, ${times(version.extent)} taps, values within ±${short(peak)}`);
  name("spectrum", `Spectrum of this kernel${of} at resolution ×${short(SCALES[state.version])}`);
  name("pairs-canvas", `Kernels of all channel pairs${of}. Selected: ${pair}. Use the arrow keys to select another`);
  part["kernel-caption"].replaceChildren(strong("Kernel"), ...kernelCaption(now, pair));
  part["spectrum-caption"].replaceChildren(strong("Spectrum"), ...spectrumCaption(now));
  part["pairs-caption"].replaceChildren(strong("Channel pairs"), pairsCaption(now));
}

function kernelCaption({ layer, view }, pair) {
  const text = ` ${pair}${dims(layer) === 3 ? ", in the plane through the center of the mask" : ""}.`;
  if (!layer.mask) return [text];
  if (view.axes.length === 1) return [text, " The shaded area shows the mask."];
  return [text, legend(legendEntry("one standard deviation of the mask", "mask inner"),
    layer.mask.radius !== null && legendEntry("the mask is cropped here", "mask"))];
}

function spectrumCaption({ layer, version, view }) {
  const highest = version.bound && Math.max(...version.bound);
  const outside = (frequency) => (frequency > frequencyRange(layer) ? " (outside the plot)" : "");
  const across = AXES[dims(layer)].find((_, axis) => !view.axes.includes(axis));
  return [across ? ` of the kernel summed over ${across}` : " of this kernel", ", relative to its maximum.",
    legend(legendEntry(`Nyquist frequency of the model${outside(1)}`, "nyquist"),
      state.version !== OWN && !outside(version.nyquist[0])
        && legendEntry("Nyquist frequency at this resolution", "now"),
      version.bound
        ? legendEntry(`upper bound of its frequencies, ${short(highest)} × Nyquist${outside(highest)}`, "bound")
        : `There is no formula for the highest frequency of a ${layer.generator}.`)];
}

function pairsCaption({ layer }) {
  const some = (shown, all, what) => `${shown === all ? "" : `${shown} of `}${all} ${what}${all === 1 ? "" : "s"}`;
  const outputs = some(layer.outs.length, layer.channels[1], "output channel");
  const inputs = some(layer.ins.length, layer.channels[0] / layer.groups, "input channel");
  const columns = layer.groups > 1 ? `columns, within each of ${layer.groups} groups` : "columns";
  return ` on a common scale: ${outputs} (rows), ${inputs} (${columns}). Click a kernel to show it.`;
}
