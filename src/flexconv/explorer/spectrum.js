/* The spectrum of a sampled kernel. */

const FLOOR = -50; // decibels, relative to the maximum

/* In-place Fourier transform of complex numbers, whose count is a power of two. */
function fft(re, im) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  for (let size = 2; size <= n; size *= 2) {
    const half = size / 2;
    for (let k = 0; k < half; k++) {
      const cos = Math.cos((-2 * Math.PI * k) / size);
      const sin = Math.sin((-2 * Math.PI * k) / size);
      for (let a = k; a < n; a += size) {
        const b = a + half;
        const x = re[b] * cos - im[b] * sin;
        const y = re[b] * sin + im[b] * cos;
        re[b] = re[a] - x;
        im[b] = im[a] - y;
        re[a] += x;
        im[a] += y;
      }
    }
  }
}

/* The number of bins: at least `perTap` per tap, so that the curve between them is smooth. */
const bins = (taps, perTap) => 2 ** Math.ceil(Math.log2(Math.max(128, perTap * taps)));

/* |ψ̂| of values [taps] → [bins], with frequency 0 in the middle. */
function spectrum1d(values) {
  const n = bins(values.length, 4);
  const re = new Float64Array(n);
  const im = new Float64Array(n);
  re.set(values);
  fft(re, im);
  return Float64Array.from(re, (_, i) => Math.hypot(re[(i + n / 2) % n], im[(i + n / 2) % n]));
}

/* |ψ̂| of values [rows · columns] → { values: [n · m], rows: n, columns: m }, with frequency 0 in the middle. */
function spectrum2d(values, rows, columns) {
  const [n, m] = [bins(rows, 2), bins(columns, 2)];
  const re = new Float64Array(n * m);
  const im = new Float64Array(n * m);
  for (let r = 0; r < rows; r++) {
    const line = [re.subarray(r * m, (r + 1) * m), im.subarray(r * m, (r + 1) * m)];
    line[0].set(values.subarray(r * columns, (r + 1) * columns));
    fft(...line);
  }
  const [a, b] = [new Float64Array(n), new Float64Array(n)];
  const result = new Float64Array(n * m);
  for (let c = 0; c < m; c++) {
    for (let r = 0; r < n; r++) [a[r], b[r]] = [re[r * m + c], im[r * m + c]];
    fft(a, b);
    for (let r = 0; r < n; r++) {
      result[((r + n / 2) % n) * m + ((c + m / 2) % m)] = Math.hypot(a[r], b[r]);
    }
  }
  return { values: result, rows: n, columns: m };
}

/* Amplitudes in decibels relative to their maximum, clipped at FLOOR. */
function decibels(values) {
  const peak = values.reduce((a, b) => Math.max(a, b), 0);
  return values.map((value) => Math.max(FLOOR, 20 * Math.log10((value || 1e-300) / (peak || 1))));
}
