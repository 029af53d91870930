/* Classify a series: a sample, a table, a recording, pasted numbers, or a drawing. A series is
   { channels: [values per channel], name, note, sample: [network, index] or null }. */

const SERIES_PAD = [288, 96]; // width and height of the drawing area
const DRAWN_RANGE = 3; // standard deviations above and below the mean that the drawing area covers

const seriesTrials = networks.map(({ trial }) => (trial?.kind === "series" ? trial : null));
const seriesState = { run: 0, drawn: [] };

/* --- reading --- */

/* Numbers in text → { channels, note }. There is one line per step or per channel. Cells without a number, such as labels
   and a header, are ignored. */
function readSeries(words, count) {
  const lines = words.split(/\r?\n/).filter((line) => line.trim());
  if (/\d,\d+;/.test(words)) throw new Error("Decimal commas are not read: write numbers with a point.");
  const rows = lines.map((line) => line.split(/[,;\t]|\s+/).map((cell) => cell.trim()).filter(Boolean)
    .map(Number).filter(Number.isFinite)).filter((row) => row.length);
  if (!rows.length) throw new Error("There are no numbers.");
  const width = rows[0].length;
  const uneven = rows.findIndex((row) => row.length !== width);
  if (uneven >= 0) throw new Error(`Line ${uneven + 1} has ${rows[uneven].length} numbers, but the first has ${width}.`);
  if (width === count) return { channels: rows[0].map((_, c) => rows.map((row) => row[c])), note: "" };
  if (rows.length === count) return { channels: rows, note: "" };
  if (count === 1) return { channels: [rows[0]], note: `the first of ${rows.length} lines` };
  throw new Error(`The network takes ${count} channels, as ${count} lines or ${count} numbers per line; `
    + `there are ${rows.length} lines of ${width} numbers.`);
}

/* The samples of a 16-bit .wav file → { channels, rate }. */
function readWav(buffer) {
  const view = new DataView(buffer);
  const tag = (at) => String.fromCharCode(...new Uint8Array(buffer, at, 4));
  if (buffer.byteLength < 44 || tag(0) !== "RIFF" || tag(8) !== "WAVE") throw new Error("This is not a .wav file.");
  let format = null;
  for (let at = 12; at + 8 <= buffer.byteLength; at += 8 + view.getUint32(at + 4, true) + (view.getUint32(at + 4, true) % 2)) {
    if (tag(at) === "fmt ") {
      format = { count: view.getUint16(at + 10, true), rate: view.getUint32(at + 12, true), bits: view.getUint16(at + 22, true) };
    } else if (tag(at) === "data" && format) {
      if (format.bits !== 16) throw new Error(`The recording has ${format.bits} bits per sample; the page reads 16.`);
      const steps = Math.floor(Math.min(view.getUint32(at + 4, true), buffer.byteLength - at - 8) / 2 / format.count);
      const value = (c, i) => view.getInt16(at + 8 + 2 * (i * format.count + c), true);
      const channels = Array.from({ length: format.count }, (_, c) => Array.from({ length: steps }, (_, i) => value(c, i)));
      return { channels, rate: format.rate };
    }
  }
  throw new Error("The .wav file has no samples.");
}

async function openSeries(file) {
  const { mean, rate } = seriesTrials.find(Boolean);
  try {
    if (!/\.wav$/i.test(file.name)) {
      classifySeries({ ...readSeries(await file.text(), mean.length), name: file.name, sample: null });
      return;
    }
    const wav = readWav(await file.arrayBuffer());
    if (rate && wav.rate !== rate) {
      throw new Error(`It has ${wav.rate} Hz, but the network takes ${rate} Hz. flexconv predict resamples recordings.`);
    }
    classifySeries({ channels: wav.channels, note: "", name: file.name, sample: null });
  } catch (error) {
    showSeriesError(`${file.name}: ${error.message}`);
  }
}

function sampleSeries(network, index) {
  const { samples, mean, classes } = seriesTrials[network];
  const bytes = Uint8Array.from(atob(samples[index].values), (c) => c.charCodeAt(0));
  const values = Array.from(new Float32Array(bytes.buffer));
  const length = values.length / mean.length;
  const { label } = samples[index];
  const name = label === null ? `sample ${index + 1}` : `sample ${index + 1} (true class: ${classes[label]})`;
  return { channels: mean.map((_, c) => values.slice(c * length, (c + 1) * length)), name, note: "", sample: [network, index] };
}

/* What a network sees of a series: its first steps. Throws an error if there are too few. */
function seenSeries({ channels }, { size: [length], mean, varying }) {
  if (channels.length !== mean.length) throw new Error(`It has ${channels.length} channels, but the network takes ${mean.length}.`);
  if (channels[0].length < length && !varying) {
    throw new Error(`It has ${channels[0].length} steps, but the network takes ${length}.`);
  }
  return channels.map((values) => values.slice(0, length));
}

/* --- controls --- */

function buildSeries() {
  const usable = seriesTrials.filter((trial) => trial && (trial.program || trial.samples.length));
  element("series-section").hidden = !usable.length;
  if (!usable.length) return;
  const evaluated = usable.some((trial) => trial.program);
  element("series-sources").hidden = !evaluated;
  element("series-file").addEventListener("change", ({ target }) => target.files[0] && openSeries(target.files[0]));
  element("series-text").addEventListener("input", ({ target }) => {
    if (!target.value.trim()) return;
    try {
      classifySeries({ ...readSeries(target.value, usable[0].mean.length), name: "pasted numbers", sample: null });
    } catch (error) {
      showSeriesError(error.message);
    }
  });
  const drawable = evaluated && usable[0].mean.length === 1;
  element("series-drawing").hidden = !drawable;
  if (drawable) buildSeriesPad(usable[0]);
  const list = seriesTrials.flatMap((trial, network) => (trial?.samples ?? []).map((_, index) => [network, index]));
  element("series-samples-label").hidden = !list.length;
  element("series-samples").replaceChildren(...list.map(([network, index]) => {
    const series = sampleSeries(network, index);
    const button = Object.assign(text("button", "sample", seriesCurve(series.channels, 80, 38)), { type: "button", title: series.name });
    button.setAttribute("aria-label", named(network, series.name));
    button.addEventListener("click", () => {
      state.sample = [network, index];
      writeAddress();
      classifySeries(series);
    });
    return button;
  }));
}

/* A curve through the points of the pointer, from the mean at both ends. */
function buildSeriesPad({ mean: [mean], std: [std], scale, size: [length] }) {
  const canvas = element("series-pad");
  const [width, height] = SERIES_PAD;
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const clear = () => {
    seriesState.drawn = [];
    context.fillStyle = "black";
    context.fillRect(0, 0, width, height);
  };
  const add = (event) => {
    const [x, y] = [(event.offsetX * width) / canvas.clientWidth, (event.offsetY * height) / canvas.clientHeight];
    seriesState.drawn = [...seriesState.drawn.filter(([other]) => Math.abs(other - x) > 1), [x, y]].sort((a, b) => a[0] - b[0]);
    context.fillStyle = "black";
    context.fillRect(0, 0, width, height);
    Object.assign(context, { strokeStyle: "white", lineWidth: 2 });
    context.beginPath();
    seriesState.drawn.forEach((point) => context.lineTo(...point));
    context.stroke();
  };
  const finish = () => {
    if (!seriesState.drawn.length) return;
    const points = [[-1, height / 2], ...seriesState.drawn, [width + 1, height / 2]];
    const values = Array.from({ length }, (_, i) => {
      const x = ((i + 0.5) / length) * width;
      const next = points.findIndex(([other]) => other >= x);
      const [[x0, y0], [x1, y1]] = [points[next - 1], points[next]];
      const y = y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
      return (mean + std * DRAWN_RANGE * (1 - (2 * y) / height)) / scale;
    });
    classifySeries({ channels: [values], name: "drawing", note: "", sample: null });
  };
  clear();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    add(event);
  });
  canvas.addEventListener("pointermove", (event) => event.buttons && add(event));
  canvas.addEventListener("pointerup", finish);
  element("series-clear").addEventListener("click", clear);
}

/* --- results --- */

function showSeriesError(words) {
  seriesState.run++;
  element("series-results").replaceChildren();
  element("series-status").textContent = words;
}

async function classifySeries(series) {
  const run = ++seriesState.run;
  element("series-results").replaceChildren();
  element("series-status").textContent = "";
  document.querySelectorAll("#series-samples button").forEach((button) =>
    button.setAttribute("aria-pressed", button.title === series.name));
  for (const [index, trial] of seriesTrials.entries()) {
    if (!trial) continue;
    try {
      const seen = seenSeries(series, trial);
      const start = performance.now();
      const values = await seriesLogits(series, seen, index, () => run === seriesState.run);
      if (run !== seriesState.run) return;
      showSeriesResult(index, series, seen, values, trial.program ? performance.now() - start : null);
    } catch (error) {
      element("series-status").textContent = `${named(index, series.name)}: ${error.message}`;
    }
  }
}

/* The logits, or null if the network cannot be evaluated here. */
async function seriesLogits(series, seen, index, progress) {
  const { program, samples, mean, std, scale } = seriesTrials[index];
  if (!program) return series.sample?.[0] === index ? samples[series.sample[1]].logits : null;
  const x = filled([seen.length, 1, seen[0].length]);
  planes(x).forEach((plane, c) => seen[c].forEach((value, i) => { plane[i] = (value * scale - mean[c]) / std[c]; }));
  const result = await evaluate(program, x, progress);
  return result && [...result.values];
}

function showSeriesResult(index, series, seen, logits, milliseconds) {
  const trial = seriesTrials[index];
  const figure = text("figure", "result");
  element("series-results").append(figure);
  figure.append(seriesCurve(seen, 288, 96));
  const caption = text("figcaption", "");
  if (!logits) {
    caption.append(...badge(index), `This network is not evaluated in the page, because ${trial.reason}. `,
      text("code", "", "flexconv predict"), " classifies other series.");
    figure.append(caption);
    return;
  }
  const probabilities = softmax(logits);
  const order = probabilities.map((_, i) => i).sort((a, b) => probabilities[b] - probabilities[a]);
  const truth = series.sample?.[0] === index ? trial.samples[series.sample[1]].label : null;
  figure.append(resultBars(order.slice(0, SHOWN_CLASSES), probabilities, trial.classes, truth));
  const cut = seen[0].length < series.channels[0].length ? `, of which the network sees the first ${seen[0].length} steps` : "";
  const note = series.note ? ` (${series.note})` : "";
  const time = milliseconds === null ? "computed when the page was written" : `in ${short(milliseconds)} ms`;
  caption.append(...badge(index), strong(trial.classes[order[0]]), ` for ${series.name}${note}${cut}, ${time}.`);
  figure.append(caption);
  addDownloads(figure, () => ({
    label: "the result", name: fileName(networks[index].title, series.name), heading: networks[index].title,
    rows: [["class", "probability", "logit"], ...order.map((i) => [trial.classes[i], probabilities[i], logits[i]])],
  }));
}

/* All channels of a series in one picture, with a common scale. */
function seriesCurve(channels, width, height) {
  const all = channels.flat();
  const [low, high] = all.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  for (const values of channels) {
    const points = values.map((value, i) => [
      ((i + 0.5) / values.length) * width, height - 2 - ((value - low) / (high - low || 1)) * (height - 4)]);
    root.append(svg("path", { class: "curve", d: path(points) }));
  }
  return root;
}

/* Show the sample of the address, or the first one. */
function showSeriesSample() {
  const [network, index] = state.sample ?? [seriesTrials.findIndex((trial) => trial?.samples.length), 0];
  if (seriesTrials[network]) classifySeries(sampleSeries(network, index));
}
