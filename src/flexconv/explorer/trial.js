/* Classify an image: a sample, a file, a picture from the clipboard, or a drawing. A picture is
   { width, height, planes: [red, green, blue], each of uint8, name, sample: [network, index] or null }. */

const RESIZE_UNIT = 2 ** 22; // of the integer weights with which Pillow resizes
const PAD_SIZE = 224; // of the drawing area
const SHOWN_CLASSES = 5;

const trials = networks.map(({ trial }) => (trial?.kind === "images" ? trial : null));
const trialState = { picture: null, invert: false, run: 0 };

/* --- preprocessing --- */

/* Weights of `old` pixels in `now` ones, bilinear with antialiasing, as integers: for each new pixel [first, weights]. */
function resizeWeights(old, now) {
  const ratio = old / now;
  const reach = Math.max(ratio, 1);
  return Array.from({ length: now }, (_, i) => {
    const centre = (i + 0.5) * ratio;
    const first = Math.max(0, Math.floor(centre - reach - 0.5));
    const last = Math.min(old - 1, Math.ceil(centre + reach - 0.5));
    const triangle = Array.from({ length: last - first + 1 }, (_, k) =>
      Math.max(0, 1 - Math.abs(first + k + 0.5 - centre) / reach));
    const sum = triangle.reduce((a, b) => a + b, 0);
    return [first, triangle.map((weight) => Math.floor((weight / sum) * RESIZE_UNIT + 0.5))];
  });
}

/* Resize a plane of bytes exactly as flexconv and Pillow do: columns first, then rows, each rounded. */
function resizePlane(plane, [height, width], [rows, columns]) {
  const along = (values, count, size, now, at) => {
    if (size === now) return values;
    const result = new Uint8ClampedArray(count * now);
    resizeWeights(size, now).forEach(([first, weights], i) => {
      for (let line = 0; line < count; line++) {
        const sum = weights.reduce((total, weight, k) => total + weight * values[at(line, first + k, size)], 0);
        result[at(line, i, now)] = Math.floor(sum / RESIZE_UNIT + 0.5);
      }
    });
    return result;
  };
  const wide = along(plane, height, width, columns, (line, i, size) => line * size + i);
  return along(wide, columns, height, rows, (line, i) => i * columns + line);
}

/* What a network sees: bytes [C][H · W], as Pillow converts and flexconv resizes them. */
function seenPixels({ planes: [red, green, blue], width, height }, { size, mean }) {
  const grey = () => red.map((r, i) => (19595 * r + 38470 * green[i] + 7471 * blue[i] + 32768) >> 16);
  const channels = mean.length === 1 ? [grey()] : [red, green, blue];
  const resized = channels.map((plane) => resizePlane(plane, [height, width], size));
  return trialState.invert ? resized.map((plane) => plane.map((value) => 255 - value)) : resized;
}

/* The input of a network. */
function standardise(pixels, { size, mean, std, peak }) {
  const x = filled([pixels.length, ...size]);
  planes(x).forEach((plane, c) => pixels[c].forEach((value, i) => {
    plane[i] = ((value / 255) * peak - mean[c]) / std[c];
  }));
  return x;
}

/* --- pictures --- */

function pictureOf(image, width, height, name) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white"; // behind transparent pixels
  context.fillRect(0, 0, width, height);
  context.drawImage(image, 0, 0);
  const { data: bytes } = context.getImageData(0, 0, width, height);
  const plane = (channel) => Uint8ClampedArray.from({ length: width * height }, (_, i) => bytes[4 * i + channel]);
  return { width, height, planes: [0, 1, 2].map(plane), name, sample: null };
}

function samplePicture(network, index) {
  const { samples, size: [height, width], classes } = trials[network];
  const { pixels, label } = samples[index];
  const bytes = Uint8ClampedArray.from(atob(pixels), (c) => c.charCodeAt(0));
  const channels = bytes.length / (width * height);
  const plane = (channel) => bytes.subarray(channel * width * height, (channel + 1) * width * height);
  const name = label === null ? `sample ${index + 1}` : `sample ${index + 1} (true class: ${classes[label]})`;
  return { width, height, planes: [0, 1, 2].map((c) => plane(channels === 1 ? 0 : c)), name, sample: [network, index] };
}

async function openFile(file) {
  const status = element("trial-status");
  try {
    const image = await createImageBitmap(file);
    classify(pictureOf(image, image.width, image.height, file.name || "picture"));
  } catch {
    status.textContent = `${file.name || "This file"} is not an image that this browser can read.`;
  }
}

/* --- controls --- */

function buildTrial() {
  const usable = trials.some((trial) => trial && (trial.program || trial.samples.length));
  element("trial-section").hidden = !usable;
  if (!usable) return;
  const evaluated = trials.some((trial) => trial?.program);
  element("sources").hidden = !evaluated;
  element("file").addEventListener("change", ({ target }) => target.files[0] && openFile(target.files[0]));
  element("invert").addEventListener("change", ({ target }) => {
    trialState.invert = target.checked;
    if (trialState.picture) classify(trialState.picture);
  });
  if (evaluated) acceptFiles();
  buildSamples();
  const greys = trials.some((trial) => trial?.program && trial.mean.length === 1);
  element("drawing").hidden = !greys;
  if (greys) buildPad();
}

/* Images that are dropped or pasted anywhere on the page. */
function acceptFiles() {
  const section = element("trial-section");
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    section.classList.add("dropping");
  });
  for (const end of ["drop", "dragleave"]) document.addEventListener(end, () => section.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) openFile(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find(({ type }) => type.startsWith("image/"));
    if (file) openFile(file);
  });
}

function buildSamples() {
  const list = trials.flatMap((trial, network) => (trial?.samples ?? []).map((_, index) => [network, index]));
  element("samples-label").hidden = !list.length;
  element("samples").replaceChildren(...list.map(([network, index]) => {
    const picture = samplePicture(network, index);
    const canvas = document.createElement("canvas");
    paintPixels(canvas, picture.planes, picture.height, picture.width);
    const button = Object.assign(text("button", "sample", canvas), { type: "button", title: picture.name });
    button.setAttribute("aria-label", named(network, picture.name));
    button.addEventListener("click", () => {
      state.sample = [network, index];
      writeAddress();
      classify(picture);
    });
    return button;
  }));
}

/* A white pen on a black ground, as in the data sets of digits. */
function buildPad() {
  const canvas = element("pad");
  canvas.width = canvas.height = PAD_SIZE;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  Object.assign(context, { lineWidth: PAD_SIZE / 10, lineCap: "round", lineJoin: "round", strokeStyle: "white" });
  const clear = () => {
    context.fillStyle = "black";
    context.fillRect(0, 0, PAD_SIZE, PAD_SIZE);
  };
  const at = (event) => [event.offsetX, event.offsetY].map((value) => (value * PAD_SIZE) / canvas.clientWidth);
  clear();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    context.beginPath();
    context.moveTo(...at(event));
    context.lineTo(...at(event));
    context.stroke();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    context.lineTo(...at(event));
    context.stroke();
    classify(pictureOf(canvas, PAD_SIZE, PAD_SIZE, "drawing"));
  });
  canvas.addEventListener("pointerup", () => classify(pictureOf(canvas, PAD_SIZE, PAD_SIZE, "drawing")));
  element("clear").addEventListener("click", () => {
    clear();
    showPicture(null);
  });
}

/* --- results --- */

/* Show a picture and what the networks make of it. A newer picture abandons the evaluation of an older one. */
async function classify(picture) {
  const run = ++trialState.run;
  showPicture(picture);
  for (const [index, trial] of trials.entries()) {
    if (!trial) continue;
    const logits = await logitsOf(picture, index, (share) => {
      if (run === trialState.run) element("trial-status").textContent = `Evaluating: ${Math.round(100 * share)} %`;
      return run === trialState.run;
    });
    if (run !== trialState.run) return;
    showResult(index, picture, logits);
  }
  element("trial-status").textContent = "";
}

/* { values, seconds: null if they were computed in advance }, or null if the network cannot be evaluated here. */
async function logitsOf(picture, index, progress) {
  const { program, samples } = trials[index];
  if (program) {
    const start = performance.now();
    const result = await evaluate(program, standardise(seenPixels(picture, trials[index]), trials[index]), progress);
    return result && { values: [...result.values], seconds: (performance.now() - start) / 1000 };
  }
  const own = picture.sample?.[0] === index && !trialState.invert;
  return own ? { values: samples[picture.sample[1]].logits, seconds: null } : null;
}

function showPicture(picture) {
  trialState.picture = picture;
  element("results").replaceChildren();
  element("trial-results").hidden = !picture;
  document.querySelectorAll("#samples button").forEach((button) =>
    button.setAttribute("aria-pressed", button.title === picture?.name));
}

function showResult(index, picture, logits) {
  const trial = trials[index];
  const figure = text("figure", "result");
  element("results").append(figure);
  const canvas = document.createElement("canvas");
  const pixels = seenPixels(picture, trial);
  paintPixels(canvas, pixels.length === 1 ? [pixels[0], pixels[0], pixels[0]] : pixels, ...trial.size);
  canvas.className = "seen";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `What the network sees of ${picture.name}: ${times(trial.size)} pixels`);
  const caption = text("figcaption", "");
  figure.append(canvas);
  if (!logits) {
    caption.append(...badge(index), `This network is not evaluated in the page, because ${trial.reason}. `
      + `The samples show results that were computed when the page was written. `, text("code", "", "flexconv predict"),
      " classifies other images.");
    figure.append(caption);
    return;
  }
  const probabilities = softmax(logits.values);
  const order = probabilities.map((_, i) => i).sort((a, b) => probabilities[b] - probabilities[a]);
  const truth = picture.sample?.[0] === index ? trial.samples[picture.sample[1]].label : null;
  figure.append(resultBars(order.slice(0, SHOWN_CLASSES), probabilities, trial.classes, truth));
  const time = logits.seconds === null ? "computed when the page was written" : `in ${short(1000 * logits.seconds)} ms`;
  caption.append(...badge(index), strong(trial.classes[order[0]]), ` for ${picture.name}, ${time}. `
    + `The network sees ${times(trial.size)} pixels.`);
  figure.append(caption);
  addDownloads(figure, () => ({
    label: "the result", name: fileName(networks[index].title, picture.name), heading: networks[index].title,
    rows: [["class", "probability", "logit"],
      ...order.map((i) => [trial.classes[i], probabilities[i], logits.values[i]])],
  }));
}

function resultBars(order, probabilities, classes, truth) {
  const list = text("ol", "bars");
  for (const i of order) {
    const bar = document.createElement("i");
    bar.style.width = `${100 * probabilities[i]}%`;
    const name = text("span", "class", classes[i], i === truth ? " (true)" : "");
    list.append(text("li", "", name, text("span", "bar", bar), text("span", "share", `${number(100 * probabilities[i], 1)} %`)));
  }
  return list;
}

function paintPixels(canvas, channels, rows, columns) {
  Object.assign(canvas, { width: columns, height: rows });
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) image.data.set([...channels.map((plane) => plane[i]), 255], 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/* Show the sample of the address, or the first one. */
function showSample() {
  const [network, index] = state.sample ?? [trials.findIndex((trial) => trial?.samples.length), 0];
  if (trials[network]) classify(samplePicture(network, index));
}
