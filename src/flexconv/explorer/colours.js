/* Colour maps. They are interpolated in OKLab, so that equal steps look equal. Colour-blind readers can distinguish blue
   and orange. Zero has the colour of the panel, in both themes. */

const MAPS = {
  light: {
    signed: [[0.38, 0.13, 262], [0.62, 0.13, 245], [0.86, 0.06, 235], [0.985, 0.002, 90],
             [0.87, 0.07, 65], [0.66, 0.15, 48], [0.42, 0.14, 35]],
    energy: [[0.985, 0.002, 90], [0.86, 0.07, 195], [0.68, 0.11, 225], [0.47, 0.13, 262], [0.27, 0.11, 290]],
  },
  dark: {
    signed: [[0.88, 0.08, 220], [0.66, 0.13, 242], [0.42, 0.10, 255], [0.235, 0.012, 265],
             [0.44, 0.10, 42], [0.69, 0.14, 52], [0.90, 0.09, 80]],
    energy: [[0.235, 0.012, 265], [0.38, 0.11, 285], [0.54, 0.15, 320], [0.74, 0.13, 40], [0.94, 0.09, 95]],
  },
};

const preference = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null; // "light" or "dark" after the reader has pressed the button

const theme = () => chosenTheme ?? (preference.matches ? "dark" : "light");

/* Choose "light" or "dark", or null for the theme of the system. */
function chooseTheme(name) {
  chosenTheme = name;
  document.documentElement.style.colorScheme = name ?? "";
}

/* Interpolate 256 colours between anchors [lightness, chroma, hue] → RGB bytes. */
function ramp(anchors) {
  const table = new Uint8ClampedArray(3 * 256);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (anchors.length - 1);
    const low = Math.min(Math.floor(place), anchors.length - 2);
    const [a, b] = [anchors[low], anchors[low + 1]].map(([l, c, h]) =>
      [l, c * Math.cos((h * Math.PI) / 180), c * Math.sin((h * Math.PI) / 180)]);
    table.set(oklabToBytes(a.map((value, k) => value + (b[k] - value) * (place - low))), 3 * i);
  }
  return table;
}

function oklabToBytes([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((x) => 255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * Math.max(x, 0) ** (1 / 2.4) - 0.055));
}

const ramps = {};
const colourMap = (kind) => (ramps[theme() + kind] ??= ramp(MAPS[theme()][kind]));
const colourOf = (kind, share) => `rgb(${colourMap(kind).subarray(3 * Math.round(255 * share)).slice(0, 3).join(" ")})`;

/* Paint values [rows · columns] on a canvas, one pixel each. The colour map covers low to high. */
function paint(canvas, values, rows, columns, kind, low, high) {
  canvas.width = columns;
  canvas.height = rows;
  const table = colourMap(kind);
  const image = new ImageData(columns, rows);
  values.forEach((value, i) => {
    const colour = 3 * Math.round(255 * Math.min(1, Math.max(0, (value - low) / (high - low || 1))));
    image.data.set([table[colour], table[colour + 1], table[colour + 2], 255], 4 * i);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/* Draw a colour bar between two labels. */
function drawScale(host, kind, low, high) {
  const bar = document.createElement("canvas");
  bar.setAttribute("aria-hidden", "true");
  host.replaceChildren(low, bar, high);
  paint(bar, Float64Array.from({ length: 256 }, (_, i) => i), 1, 256, kind, 0, 255);
}
