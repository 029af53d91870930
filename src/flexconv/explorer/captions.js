/* Numbers and captions of the chosen layer. */

function drawNumbers({ layer }) {
  const each = (values, digits) => values.map((value) => number(value, digits)).join(", ");
  const entries = [["Size", `${times(layer.extent)} of ${times(layer.grid)} taps`]];
  if (layer.mask) entries.push(["Mask centre", each(layer.mean, 2)], ["Mask σ", each(layer.sigma, 2)]);
  else entries.push(["Mask", "none"]);
  const nyquist = each(new Set(layer.nyquist).size === 1 ? layer.nyquist.slice(0, 1) : layer.nyquist, 2);
  if (layer.frequency) {
    const beyond = layer.frequency.some((f, axis) => f > layer.nyquist[axis]);
    const compared = `${each(layer.frequency, 2)} ${beyond ? ">" : "≤"} Nyquist ${nyquist}`;
    entries.push(["Highest frequency, by formula", compared, beyond]);
  } else {
    entries.push(["Nyquist frequency", nyquist]);
  }
  entries.push(["99 % of the energy below", `${layer.measured.map(short).join(", ")} of Nyquist`]);
  entries.push(["Parameters", layer.parameters.toLocaleString("en")]);
  if (layer.share !== null) entries.push(["Share of the work", `${short(100 * layer.share)} %`]);
  element("numbers").replaceChildren(...entries.map(([name, value, beyond]) => {
    const group = document.createElement("div");
    group.append(Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: value, className: beyond ? "beyond" : "" }));
    return group;
  }));
}

/* What the plots show, in their captions and for screen readers. */
function describe(now, peak) {
  const { layer, version } = now;
  const pair = `output ${layer.outs[state.out]}, input ${layer.ins[state.in]}`;
  const name = (plot, text) => plot.setAttribute("aria-label", text);
  name(host.kernel, `Kernel of ${layer.name}, ${pair}, ${times(version.extent)} taps, within ±${short(peak)}`);
  name(host.spectrum, `Spectrum of that kernel at resolution ×${short(data.scales[state.version])}`);
  name(host.pairsCanvas, `Pairs of channels; chosen: ${pair}. Arrow keys choose others`);
  element("kernel-caption").replaceChildren(strong("Kernel"), ...kernelCaption(now, pair));
  element("spectrum-caption").replaceChildren(strong("Spectrum"), ...spectrumCaption(now));
  element("pairs-caption").replaceChildren(strong("Pairs"), pairsCaption(now));
}

function kernelCaption({ layer, view }, pair) {
  const what = ` of ${pair}${dims(layer) === 3 ? ", the plane through its centre" : ""}.`;
  if (!layer.mask) return [what];
  if (view.axes.length === 1) return [what, " Shaded: the mask."];
  return [what, legend(legendEntry("mask at 1 σ", "mask inner"),
    layer.mask.reach !== null && legendEntry("where it is cropped", "mask"))];
}

function spectrumCaption({ layer, version }) {
  const highest = version.limit && Math.max(...version.limit);
  const outside = (frequency) => (frequency > frequencyRange(layer, version) ? ", outside" : "");
  return [dims(layer) === 3 ? " of its sum across that plane" : " of this kernel", ", below its peak.",
    legend(legendEntry(`Nyquist at ×1${outside(1)}`, "nyquist"),
      state.version !== OWN && !outside(version.nyquist[0]) && legendEntry("at this resolution", "now"),
      version.limit
        ? legendEntry(`highest by formula, ${short(highest)} × Nyquist${outside(highest)}`, "limit")
        : `No formula bounds the frequencies of a ${layer.generator}.`)];
}

function pairsCaption({ layer }) {
  const some = (shown, all, what) => `${shown === all ? "" : `${shown} of `}${all} ${what}${all === 1 ? "" : "s"}`;
  const outputs = some(layer.outs.length, layer.channels[1], "output");
  const inputs = some(layer.ins.length, layer.channels[0] / layer.groups, "input");
  const groups = layer.groups > 1 ? `, those of its group (${layer.groups} groups)` : "";
  return `, on one scale: ${outputs} (down), ${inputs} (across)${groups}.`;
}
