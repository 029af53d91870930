/* The selected layer of one network: its numbers, kernel, spectrum and channel pairs. */

/* Create the panel of a network. Its parts get ids such as "kernel" in the first network and "kernel-B" in the second. */
function makePanel(network, index) {
  const root = element("panel").content.firstElementChild.cloneNode(true);
  const parts = [...root.querySelectorAll("[data-part]")];
  const part = Object.fromEntries(parts.map((node) => [node.dataset.part, node]));
  for (const node of parts) node.id = node.dataset.part + (index ? `-${LETTERS[index]}` : "");
  const panel = { network, index, root, part };
  part.out.addEventListener("change", () => choosePair(panel, part.out.selectedIndex, state.pairs[index][1]));
  part.in.addEventListener("change", () => choosePair(panel, state.pairs[index][0], part.in.selectedIndex));
  part["pairs-canvas"].addEventListener("keydown", (event) => movePair(panel, event));
  part["pairs-canvas"].addEventListener("pointerdown", (event) => pointAtPair(panel, event));
  part["kernel-canvas"].addEventListener("pointermove", (event) => readTap(panel, event));
  part["kernel-canvas"].addEventListener("pointerleave", () => { part.tap.textContent = ""; });
  offerDownloads(panel);
  return panel;
}

function offerDownloads({ network, index, part }) {
  const tables = {
    kernel: (now) => kernelRows(now, now.kernel),
    spectrum: spectrumRows,
    pairs: pairRows,
  };
  for (const [what, rows] of Object.entries(tables)) {
    addDownloads(part[what].closest("figure"), () => {
      const now = current(index);
      const scale = what === "pairs" || state.version === OWN ? "" : `×${short(SCALES[state.version])}`;
      return {
        label: what === "pairs" ? "all channel pairs" : what,
        name: fileName(network.title, layerNames[state.layer], what, scale),
        heading: [network.title, layerNames[state.layer], scale].filter(Boolean).join(" · "),
        get rows() { return rows(now); },
      };
    });
  }
}

/* --- selection --- */

function choosePair(panel, out, input) {
  const layer = layerAt(panel.network, state.layer);
  const within = (value, list) => Math.min(Math.max(value, 0), list.length - 1);
  state.pairs[panel.index] = [within(out, layer.outs), within(input, layer.ins)];
  writeAddress();
  drawPanel(panel);
}

function movePair(panel, event) {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const [out, input] = state.pairs[panel.index];
  choosePair(panel, out + step[0], input + step[1]);
}

function pointAtPair(panel, event) {
  const { width, height } = pairCells(layerAt(panel.network, state.layer), panel.part.pairs);
  choosePair(panel, Math.floor((event.offsetY - PAIR_MARGIN) / (height + PAIR_GAP)),
    Math.floor((event.offsetX - PAIR_MARGIN) / (width + PAIR_GAP)));
}

/* Show the position and the value of the tap under the pointer. */
function readTap({ index, part }, event) {
  const { version, view, extent, kernel } = current(index);
  const { offsetWidth, offsetHeight } = part["kernel-canvas"];
  const row = Math.min(extent[0] - 1, Math.floor((event.offsetY / offsetHeight) * extent[0]));
  const column = Math.min(extent[1] - 1, Math.floor((event.offsetX / offsetWidth) * extent[1]));
  const [y, x] = [row, column].map((tap, i) => version.first[view.axes[i]] + tap * version.step[view.axes[i]]);
  part.tap.textContent = `(${short(y)}, ${short(x)}): ${short(kernel[row * extent[1] + column])}`;
}

/* --- drawing --- */

/* Fill the lists of channels, which depend on the layer. */
function listChannels({ network, part }) {
  const layer = layerAt(network, state.layer);
  if (!layer) return;
  const options = (channels) => channels.map((channel) => new Option(channel, channel));
  part.out.replaceChildren(...options(layer.outs));
  part.in.replaceChildren(...options(layer.ins));
}

function drawPanel(panel) {
  const { index, part } = panel;
  const now = current(index);
  for (const name of ["numbers", "channels", "plots"]) part[name].hidden = !now;
  part.kind.replaceChildren(...badge(index), panelTitle(now));
  if (!now) return;
  [part.out.selectedIndex, part.in.selectedIndex] = state.pairs[index];
  drawNumbers(part.numbers, now);
  const flat = now.view.axes.length === 1;
  const plot = (name) => ({ host: part[name], canvas: part[`${name}-canvas`], scale: part[`${name}-scale`] });
  for (const name of ["kernel", "spectrum"]) {
    part[`${name}-canvas`].hidden = flat;
    part[`${name}-scale`].replaceChildren();
  }
  const peak = flat ? drawKernelCurve(part.kernel, now) : drawKernelImage(plot("kernel"), now);
  if (flat) drawSpectrumCurve(part.spectrum, now);
  else drawSpectrumImage(plot("spectrum"), now);
  drawPairs(part.pairs, part["pairs-canvas"], now);
  describe(panel, now, peak);
}

function panelTitle(now) {
  if (!now) return "has no layer of this name.";
  return `${now.layer.generator}, ${now.layer.channels[0]} → ${now.layer.channels[1]} channels`;
}

/* The letter of a network in its colour, if there are two networks. */
function badge(index) {
  if (networks.length === 1) return [];
  const letter = Object.assign(document.createElement("span"), { className: "badge", textContent: LETTERS[index] });
  letter.style.background = NETWORK_COLOURS[index];
  letter.title = networks[index].title;
  return [letter, " "];
}
