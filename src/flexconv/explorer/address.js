/* The selection in the address of the page, so that a link opens the same view and the back button works:
   #layer=blocks.1.conv2&channels=3,5&scale=1.5&plane=1&zoom=out&theme=dark. Defaults are left out. */

/* The selection as the part of the address after "#". */
function addressOf() {
  const entries = new URLSearchParams();
  const opening = openingLayer();
  if (state.layer !== opening) entries.set("layer", layerNames[state.layer]);
  networks.forEach((network, index) => {
    const layer = layerAt(network, state.layer);
    const [out, input] = state.pairs[index];
    if (!layer || pairIndex(layer, out, input) === pairIndex(layer, ...strongestPair(layer))) return;
    entries.set(`channels${LETTERS[index]}`, `${layer.outs[out]},${layer.ins[input]}`);
  });
  if (state.version !== OWN) entries.set("scale", SCALES[state.version]);
  if (state.plane) entries.set("plane", state.plane);
  if (state.whole) entries.set("zoom", "out");
  if (state.sample) entries.set("sample", `${LETTERS[state.sample[0]]}${state.sample[1] + 1}`);
  if (chosenTheme) entries.set("theme", chosenTheme);
  return entries.toString().replaceAll("%2C", ",");
}

/* Set the selection to that of the address. Values that do not exist in this page are ignored. */
function readAddress() {
  const entries = new URLSearchParams(location.hash.slice(1));
  const named = layerNames.indexOf(entries.get("layer"));
  selectLayer(named < 0 ? openingLayer() : named);
  networks.forEach((network, index) => {
    const layer = layerAt(network, state.layer);
    const [out, input] = (entries.get(`channels${LETTERS[index]}`) ?? "").split(",").map(Number);
    if (layer?.outs.includes(out) && layer.ins.includes(input)) {
      state.pairs[index] = [layer.outs.indexOf(out), layer.ins.indexOf(input)];
    }
  });
  const version = entries.has("scale") ? SCALES.indexOf(Number(entries.get("scale"))) : OWN;
  state.version = version < 0 ? OWN : version;
  const planes = Math.max(...networks.map((network) => layerAt(network, state.layer)?.versions[OWN].views.length ?? 1));
  state.plane = Math.min(planes - 1, Math.max(0, Math.trunc(Number(entries.get("plane")) || 0)));
  state.whole = entries.get("zoom") === "out";
  state.sample = readSample(entries.get("sample") ?? "");
  chooseTheme(["light", "dark"].includes(entries.get("theme")) ? entries.get("theme") : null);
}

/* "B3" → [1, 2], the third sample of the second network; null if there is none. */
function readSample(name) {
  const [, letter, digits] = name.match(/^([AB]?)(\d+)$/) ?? [];
  const network = LETTERS.indexOf(letter);
  const index = Number(digits) - 1;
  return networks[network]?.trial?.samples[index] ? [network, index] : null;
}

/* Write the selection to the address. Each selected layer gets an entry in the history of the browser; other changes
   replace the current one, so that moving a slider does not fill the history. */
function writeAddress(newEntry = false) {
  const address = addressOf();
  if (address === location.hash.slice(1)) return;
  const url = address ? `#${address}` : location.href.split("#")[0];
  history[newEntry ? "pushState" : "replaceState"](null, "", url);
}
