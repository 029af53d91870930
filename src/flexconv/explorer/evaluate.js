/* Evaluate a network, step by step. Tensors are { shape: [C, H, W] or [C], values }, without a batch dimension.
   Series are [C, 1, L]. */

function readTensor(stored) {
  if (!stored.values) {
    const bytes = Uint8Array.from(atob(stored.data), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    stored.values = Float64Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
  }
  return stored;
}

/* The result of the last step. Between steps, `progress` is called with the share of the steps that are done, and the
   browser may draw. If `progress` returns false, the evaluation is abandoned and the result is null. */
async function evaluate(program, input, progress = () => true) {
  const tensor = (index) => (index === null ? null : readTensor(program.tensors[index]));
  const results = [input];
  let resumed = performance.now();
  for (const [i, step] of program.steps.entries()) {
    const inputs = step.inputs.map((number) => results[number]);
    results.push(STEPS[step.op](step, inputs, tensor));
    if (performance.now() - resumed < 30) continue;
    if (progress((i + 1) / program.steps.length) === false) return null;
    await new Promise((resume) => setTimeout(resume));
    resumed = performance.now();
  }
  return results[program.result];
}

const filled = (shape) => ({ shape, values: new Float64Array(shape.reduce((a, b) => a * b, 1)) });
const planes = ({ shape, values }) => {
  const size = values.length / shape[0];
  return Array.from({ length: shape[0] }, (_, c) => values.subarray(c * size, (c + 1) * size));
};

const STEPS = {
  conv(step, [x], tensor) {
    const [weight, bias] = [tensor(step.weight), tensor(step.bias)];
    const padded = padBy(x, [[0, 0], ...step.padding.map((p) => [p, p])], "constant", 0);
    const [outs, ins, kh, kw] = weight.shape;
    const [, height, width] = padded.shape;
    const size = [height, width].map((n, axis) =>
      Math.floor((n - step.dilation[axis] * ([kh, kw][axis] - 1) - 1) / step.stride[axis]) + 1);
    const y = filled([outs, ...size]);
    const [from, to] = [planes(padded), planes(y)];
    for (let o = 0; o < outs; o++) {
      const group = Math.floor(o / (outs / step.groups));
      if (bias) to[o].fill(bias.values[o]);
      for (let i = 0; i < ins; i++) {
        const taps = weight.values.subarray((o * ins + i) * kh * kw, (o * ins + i + 1) * kh * kw);
        correlate(from[group * ins + i], width, taps, kh, kw, to[o], size, step);
      }
    }
    return y;
  },
  affine(step, [x], tensor) {
    const [scale, shift] = [tensor(step.scale).values, tensor(step.shift).values];
    const at = (values, c) => values[values.length === 1 ? 0 : c];
    const y = filled(x.shape);
    const [from, to] = [planes(x), planes(y)];
    from.forEach((plane, c) => plane.forEach((value, i) => { to[c][i] = value * at(scale, c) + at(shift, c); }));
    return y;
  },
  group_norm(step, [x], tensor) {
    const [weight, bias] = [tensor(step.weight)?.values, tensor(step.bias)?.values];
    const y = filled(x.shape);
    const size = x.values.length / step.groups;
    const plane = x.values.length / x.shape[0];
    for (let group = 0; group < step.groups; group++) {
      const part = x.values.subarray(group * size, (group + 1) * size);
      const mean = part.reduce((a, b) => a + b, 0) / size;
      const factor = 1 / Math.sqrt(part.reduce((a, b) => a + (b - mean) ** 2, 0) / size + step.eps);
      part.forEach((value, i) => {
        const channel = Math.floor((group * size + i) / plane);
        y.values[group * size + i] = (value - mean) * factor * (weight?.[channel] ?? 1) + (bias?.[channel] ?? 0);
      });
    }
    return y;
  },
  linear(step, [x], tensor) {
    const [weight, bias] = [tensor(step.weight), tensor(step.bias)];
    const [outs, ins] = weight.shape;
    const y = filled([outs]);
    for (let o = 0; o < outs; o++) {
      let sum = bias ? bias.values[o] : 0;
      for (let i = 0; i < ins; i++) sum += weight.values[o * ins + i] * x.values[i];
      y.values[o] = sum;
    }
    return y;
  },
  pool({ kind, size, stride }, [x]) {
    const [channels, height, width] = x.shape;
    const [rows, columns] = [height, width].map((n, axis) => Math.floor((n - size[axis]) / stride[axis]) + 1);
    const y = filled([channels, rows, columns]);
    const [from, to] = [planes(x), planes(y)];
    for (let c = 0; c < channels; c++) {
      for (let r = 0; r < rows; r++) {
        for (let q = 0; q < columns; q++) {
          let [largest, sum] = [-Infinity, 0];
          for (let a = 0; a < size[0]; a++) {
            for (let b = 0; b < size[1]; b++) {
              const value = from[c][(r * stride[0] + a) * width + q * stride[1] + b];
              largest = Math.max(largest, value);
              sum += value;
            }
          }
          to[c][r * columns + q] = kind === "max" ? largest : sum / (size[0] * size[1]);
        }
      }
    }
    return y;
  },
  mean({ keep }, [x]) {
    const y = filled(keep ? [x.shape[0], 1, 1] : [x.shape[0]]);
    planes(x).forEach((plane, c) => { y.values[c] = plane.reduce((a, b) => a + b, 0) / plane.length; });
    return y;
  },
  slice({ axis, start, end, step }, [x]) {
    const indices = [];
    for (let i = start; i < Math.min(end ?? Infinity, x.shape[axis]); i += step) indices.push(i);
    return gather(x, axis, indices.map((i) => [i, 0]));
  },
  select({ index }, [x]) {
    const last = x.shape[2];
    const { values } = gather(x, 2, [[index < 0 ? last + index : index, 0]]);
    return { shape: [x.shape[0]], values };
  },
  map(step, [x]) {
    return { shape: x.shape, values: x.values.map(FUNCTIONS[step.name](step)) };
  },
  pad: ({ pads, mode, value }, [x]) => padBy(x, pads, mode, value),
  flatten: (_, [x]) => ({ shape: [x.values.length], values: x.values }),
  add: (_, [a, b]) => ({ shape: a.shape, values: a.values.map((value, i) => value + b.values[i]) }),
  mul: (_, [a, b]) => ({ shape: a.shape, values: a.values.map((value, i) => value * b.values[i]) }),
};

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

const FUNCTIONS = {
  relu: () => (x) => Math.max(0, x),
  leaky_relu: ({ negative_slope: slope }) => (x) => (x < 0 ? slope * x : x),
  sigmoid: () => sigmoid,
  tanh: () => Math.tanh,
  silu: () => (x) => x * sigmoid(x),
  gelu: ({ approximate }) => (approximate === "tanh"
    ? (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))
    : (x) => 0.5 * x * (1 + erf(x / Math.SQRT2))),
};

/* The error function: its power series for small arguments, a continued fraction for large ones. */
function erf(x) {
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a > 2.5) {
    let fraction = a;
    for (let k = 60; k > 0; k--) fraction = a + k / 2 / fraction;
    return Math.sign(x) * (1 - Math.exp(-a * a) / (Math.sqrt(Math.PI) * fraction));
  }
  let [term, sum] = [x, x];
  for (let n = 1; Math.abs(term) > 1e-17; n++) {
    term *= (-x * x) / n;
    sum += term / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}

/* Add the correlation of one plane with one kernel to a plane of the result. */
function correlate(from, width, taps, kh, kw, to, [rows, columns], { stride, dilation }) {
  for (let a = 0; a < kh; a++) {
    for (let b = 0; b < kw; b++) {
      const tap = taps[a * kw + b];
      if (tap === 0) continue;
      for (let r = 0; r < rows; r++) {
        let source = (r * stride[0] + a * dilation[0]) * width + b * dilation[1];
        const first = r * columns;
        for (let q = first; q < first + columns; q++, source += stride[1]) to[q] += tap * from[source];
      }
    }
  }
}

/* The parts of a tensor [C, H, W] at the given places of an axis. A place is [index, value]; the value is used where the
   index is null. */
function gather({ shape, values }, axis, places) {
  const inner = shape.slice(axis + 1).reduce((a, b) => a * b, 1);
  const outer = shape.slice(0, axis).reduce((a, b) => a * b, 1);
  const y = filled(shape.map((size, i) => (i === axis ? places.length : size)));
  for (let o = 0; o < outer; o++) {
    places.forEach(([index, value], i) => {
      const to = (o * places.length + i) * inner;
      if (index === null) y.values.fill(value, to, to + inner);
      else y.values.set(values.subarray((o * shape[axis] + index) * inner, (o * shape[axis] + index + 1) * inner), to);
    });
  }
  return y;
}

/* Pad or, where an amount is negative, crop the axes of a tensor. */
function padBy(x, pads, mode, value) {
  const inside = {
    constant: (i, n) => (i < 0 || i >= n ? null : i),
    circular: (i, n) => ((i % n) + n) % n,
    replicate: (i, n) => Math.min(Math.max(i, 0), n - 1),
    reflect: (i, n) => (i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i),
  }[mode];
  return pads.reduce((padded, [before, after], axis) => {
    if (before === 0 && after === 0) return padded;
    const size = padded.shape[axis];
    const places = Array.from({ length: size + before + after }, (_, i) => [inside(i - before, size), value]);
    return gather(padded, axis, places);
  }, x);
}

function softmax(values) {
  const largest = Math.max(...values);
  const powers = Array.from(values, (value) => Math.exp(value - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}
