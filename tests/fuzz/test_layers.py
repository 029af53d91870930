"""A layer equals a slow computation from its parameters, whatever was done to it before.

Hypothesis makes layers and edits, moves, casts, copies, saves, loads and shares them, and calls them in between. After
each action the output of every layer is compared with a plain convolution in float64 whose kernel is sampled anew on
the whole grid. A failure is printed as the shortest list of actions that leads to it.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, at_resolution, capture, materialize, refresh_extents
from flexconv import nn as flexnn
from flexconv.errors import FlexConvError
from flexconv.nn import GENERATORS, ChannelGaussianMask, GaussianMask, RotatedGaussianMask, Streaming
from tests.fuzz.helpers import (
    TOLERANCE,
    assert_near,
    count,
    fuzz_settings,
    slow_fill,
    slow_gradients,
    slow_output,
)

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
DTYPES = {"double": torch.float64, "float": torch.float32, "bfloat16": torch.bfloat16, "half": torch.float16}
SMALL = {  # generators as small as they can be
    "magnet": {"hidden": 3, "layers": 2},
    "gabor": {"hidden": 3, "layers": 2},
    "fourier": {"hidden": 3, "layers": 2},
    "siren": {"hidden": 3},
    "nsiren": {"hidden": 3},
    "mlp": {"hidden": 3},
    "njet": {"order": 2},
}
ALGORITHMS = ["auto", "direct", "fft", "dft", "toeplitz"]
MOST_LAYERS = 3

which = st.integers(0, MOST_LAYERS - 1)
seeds = st.integers(0, 2**31 - 1)
sigmas = st.sampled_from([0.03, 0.1, 0.31, 0.77, 2.3])
means = st.sampled_from([0.0, -0.43, 0.87, 1.3])
forms = st.sampled_from([None, "guarded", "scaled", "authors"])
kinds = st.sampled_from(["plain", "rotated", "per channel"])  # of masks

SETTINGS: dict[str, Any] = {
    "dims": st.sampled_from([1, 1, 2, 2, 3]),
    "channels": st.tuples(st.integers(1, 2), st.integers(1, 2)),
    "groups": st.sampled_from([1, 1, 2]),
    "depthwise": st.booleans(),
    "size": st.tuples(*[st.integers(1, 5)] * 3),
    "padding": st.sampled_from(["same", "same", "causal", "valid", 1, (0, 2), (3, 0)]),
    "steps": st.tuples(st.integers(1, 2), st.integers(1, 2)),
    "mode": st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]),
    "generator": st.sampled_from(sorted(SMALL)),
    "mask": st.none() | st.tuples(forms, means, sigmas, kinds),
    "parametrization": st.sampled_from(["scaled", "paper"]),
    "algorithm": st.sampled_from(ALGORITHMS),
    "recompute": st.booleans(),
    "dtype": st.sampled_from(["double", "double", "float"]),
    "bias": st.booleans(),
    "seed": seeds,
}


def make_generator(name: str, dims: int, channels: int, dtype: torch.dtype) -> nn.Module:
    return GENERATORS[name](dims, channels, **SMALL[name], dtype=dtype)


def make_mask(
    dims: int, form: str | None, mean: float, sigma: float, kind: str, dtype: torch.dtype, channels: int | None
) -> Any:
    """A mask. `channels` are those of a depthwise layer, None for other layers."""
    guarded = None if form == "authors" else form
    if kind == "rotated" and dims == 2:
        return RotatedGaussianMask(mean=mean, sigma=(sigma, sigma / 2), angle=0.6, form=guarded, dtype=dtype)
    if kind == "per channel" and channels is not None:
        widths = {"sigma": sigma, "largest_sigma": 2 * sigma}
        return ChannelGaussianMask(dims, channels, mean=mean, **widths, form=guarded, dtype=dtype)
    return GaussianMask(dims, mean=mean, sigma=sigma, form=form, dtype=dtype)


def mask_channels(layer: flexnn.FlexConvNd) -> int | None:
    return layer.out_channels if layer.groups == layer.in_channels else None


def input_for(layer: flexnn.FlexConvNd, seed: int = 0, batch: int = 2) -> torch.Tensor:
    """A random input that is large enough for the padding of the layer."""
    sizes = []
    for (left, right), taps, dilation in zip(layer.pads, layer.kernel_size, layer.dilation, strict=True):
        fits = max(left, right) + 1 if layer.padding_mode in ("reflect", "circular") else 1
        sizes.append(max(fits, (taps - 1) * dilation + 1 - left - right, 1) + {1: 5, 2: 2, 3: 1}[layer.dims])
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(batch, layer.in_channels, *sizes, generator=chance, dtype=torch.float64).to(layer.dtype)


class Layers(RuleBasedStateMachine):
    """Up to three layers, and what can be done to them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[flexnn.FlexConvNd] = []
        self.state: tuple[flexnn.FlexConvNd, Any] | None = None
        self.compiled: tuple[flexnn.FlexConvNd, Any] | None = None

    def layer(self, number: int) -> flexnn.FlexConvNd:
        return self.layers[number % len(self.layers)]

    def put(self, number: int, layer: flexnn.FlexConvNd) -> None:
        """Add a layer, or replace one."""
        if len(self.layers) < MOST_LAYERS:
            self.layers.append(layer)
        else:
            self.layers[number % MOST_LAYERS] = layer

    # --- making -------------------------------------------------------------------------------------------------------

    @initialize(**SETTINGS)
    def start(self, **settings: Any) -> None:
        self.make(**settings)

    @rule(**SETTINGS)
    def make(
        self,
        dims: int,
        channels: tuple[int, int],
        groups: int,
        depthwise: bool,
        size: tuple[int, int, int],
        padding: Any,
        steps: tuple[int, int],
        mode: str,
        generator: str,
        mask: Any,
        parametrization: str,
        algorithm: str,
        recompute: bool,
        dtype: str,
        bias: bool,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        longest = {1: 6, 2: 3, 3: 1}[dims]
        taps = tuple(2 * min(n, longest + 1) - 1 for n in size[:dims])
        groups = 2 if depthwise else groups
        fan_in, fan_out = 1 if depthwise else channels[0], channels[1]
        masks = fan_out * groups if fan_in == 1 else None
        layer = LAYERS[dims](
            fan_in * groups,
            fan_out * groups,
            taps,
            stride=steps[0],
            padding=[padding] * dims if isinstance(padding, tuple) else padding,
            dilation=steps[1],
            groups=groups,
            bias=bias,
            padding_mode=mode,
            generator=partial(GENERATORS[generator], **SMALL[generator]),
            mask=None if mask is None else make_mask(dims, *mask, DTYPES[dtype], masks),
            parametrization=parametrization,
            algorithm=algorithm,
            recompute=recompute,
            dtype=DTYPES[dtype],
        )
        if layer.bias is not None:
            nn.init.uniform_(layer.bias)
        self.put(seed, layer)

    # --- editing ------------------------------------------------------------------------------------------------------

    @rule(number=which, mask=st.none() | st.tuples(forms, means, sigmas, kinds))
    def replace_mask(self, number: int, mask: Any) -> None:
        layer = self.layer(number)
        dtype = layer.generator.compute_dtype
        layer.mask = None if mask is None else make_mask(layer.dims, *mask, dtype, mask_channels(layer))

    @rule(number=which, name=st.sampled_from(sorted(SMALL)), seed=seeds)
    def replace_generator(self, number: int, name: str, seed: int) -> None:
        torch.manual_seed(seed)
        layer = self.layer(number)
        channels = layer.out_channels * layer.inputs_per_output
        layer.generator = make_generator(name, layer.dims, channels, layer.generator.compute_dtype)

    @rule(number=which, present=st.booleans())
    def replace_bias(self, number: int, present: bool) -> None:
        layer = self.layer(number)
        dtype = layer.dtype
        layer.bias = nn.Parameter(torch.linspace(-1, 1, layer.out_channels, dtype=dtype)) if present else None

    @rule(number=which, form=st.sampled_from(["guarded", "authors"]))
    def set_form(self, number: int, form: str) -> None:
        mask = self.layer(number).mask
        if mask is None:
            return
        if mask.form != "scaled" and form in mask.forms:
            mask.form = form
        else:
            with pytest.raises(FlexConvError, match="form"):
                mask.form = form

    @rule(number=which, threshold=st.sampled_from([None, 0.03, 0.1, 0.4]))
    def set_threshold(self, number: int, threshold: float | None) -> None:
        if (mask := self.layer(number).mask) is not None:
            mask.threshold = threshold

    @rule(number=which, mean=st.none() | means, sigma=st.none() | sigmas)
    def set_mask(self, number: int, mean: float | None, sigma: float | None) -> None:
        if (mask := self.layer(number).mask) is not None:
            mask.set_(mean=mean, sigma=sigma)

    @rule(number=which, entry=st.integers(0, 30), way=st.sampled_from(["in place", ".data", "new .data", "new"]))
    def write_parameter(self, number: int, entry: int, way: str) -> None:
        layer = self.layer(number)
        names = [name for name, _ in layer.named_parameters()]
        name = names[entry % len(names)]
        owner, last = layer.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        parameter = owner._parameters[last]
        assert parameter is not None
        with torch.no_grad():
            if way == "in place":
                parameter.mul_(0.9).add_(0.05)
            elif way == ".data":
                parameter.data.mul_(1.1)
            elif way == "new .data":
                parameter.data = parameter.data * 0.8
            else:
                setattr(owner, last, nn.Parameter(parameter * 1.05, requires_grad=parameter.requires_grad))

    @rule(number=which, entry=st.integers(0, 30), required=st.booleans())
    def require_gradient(self, number: int, entry: int, required: bool) -> None:
        parameters = list(self.layer(number).parameters())
        parameters[entry % len(parameters)].requires_grad_(required)

    @rule(number=which, algorithm=st.sampled_from(ALGORITHMS), stride=st.integers(1, 2), recompute=st.booleans())
    def set_attributes(self, number: int, algorithm: str, stride: int, recompute: bool) -> None:
        layer = self.layer(number)
        layer.algorithm, layer.stride, layer.recompute = algorithm, (stride,) * layer.dims, recompute

    @rule(number=which, factor=st.sampled_from([None, 2.0, -0.5]))
    def hook(self, number: int, factor: float | None) -> None:
        generator = self.layer(number).generator
        generator._forward_hooks.clear()
        if factor is not None:
            generator.register_forward_hook(_Times(factor))

    @rule(number=which, seed=seeds)
    def reset(self, number: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.layer(number).reset_parameters()

    @rule(number=which)
    def refuse_kernel_size(self, number: int) -> None:
        with pytest.raises(AttributeError):
            self.layer(number).kernel_size = (3,) * self.layer(number).dims

    # --- moving and copying -------------------------------------------------------------------------------------------

    @rule(number=which, dtype=st.sampled_from(sorted(DTYPES)))
    def cast(self, number: int, dtype: str) -> None:
        getattr(self.layer(number), dtype)()

    @rule(number=which)
    def move(self, number: int) -> None:
        """To a device without data and back, with the state of before."""
        layer = self.layer(number)
        state = copy.deepcopy(layer.state_dict())
        layer.to("meta").to_empty(device="cpu").load_state_dict(state)

    @rule(number=which)
    def share_memory(self, number: int) -> None:
        self.layer(number).share_memory()

    @rule(number=which, by=st.sampled_from(["deepcopy", "pickle"]))
    def duplicate(self, number: int, by: str) -> None:
        layer = self.layer(number)
        if by == "pickle" and layer.generator._forward_hooks:
            by = "deepcopy"
        self.put(number + 1, copy.deepcopy(layer) if by == "deepcopy" else pickle.loads(pickle.dumps(layer)))

    @rule(number=which)
    def save(self, number: int) -> None:
        layer = self.layer(number)
        self.state = copy.deepcopy(layer), copy.deepcopy(layer.state_dict())

    @precondition(lambda self: self.state is not None)
    @rule(number=which, swap=st.booleans())
    def load(self, number: int, swap: bool) -> None:
        """Load a state into this layer or another one. If it does not fit, an error says so."""
        assert self.state is not None
        layer = self.layer(number)
        torch.__future__.set_swap_module_params_on_conversion(swap)
        try:
            layer.load_state_dict(self.state[1])
        except RuntimeError as error:
            assert "Error(s) in loading" in str(error)  # noqa: PT017
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    @rule(number=which, other=which, part=st.sampled_from(["mask", "generator", "bias"]))
    def share(self, number: int, other: int, part: str) -> None:
        giver, taker = self.layer(number), self.layer(other)
        same = (giver.dims, giver.generator.channels) == (taker.dims, taker.generator.channels)
        precise = giver.generator.compute_dtype == taker.generator.compute_dtype
        if giver is not taker and same and precise and giver.dtype == taker.dtype:
            if part == "bias" and giver.out_channels != taker.out_channels:
                return
            per_channel = part == "mask" and isinstance(giver.mask, ChannelGaussianMask)
            if per_channel and giver.mask.channels != mask_channels(taker):
                return
            setattr(taker, part, getattr(giver, part))

    @rule(
        number=which,
        scale=st.sampled_from([0.5, 0.75, 1, 1.5, 2]),
        crop=st.sampled_from(["taper", "hard"]),
        copied=st.booleans(),
    )
    def resample(self, number: int, scale: float, crop: str, copied: bool) -> None:
        layer = self.layer(number)
        if max(layer.kernel_size) * scale <= 15:
            self.put(number + 1, at_resolution(layer, scale, crop=crop, copy=copied))

    # --- calling ------------------------------------------------------------------------------------------------------

    @rule(number=which, mode=st.booleans())
    def train(self, number: int, mode: bool) -> None:
        self.layer(number).train(mode)

    @rule(number=which, inference=st.booleans())
    def evaluate(self, number: int, inference: bool) -> None:
        """Two calls without gradients: the second uses the kernel of the first."""
        layer = self.layer(number).eval()
        x = input_for(layer)
        with torch.inference_mode() if inference else torch.no_grad():
            outputs = [self._call(layer, x) for _ in range(2)]
        self._compare(layer, x, *outputs)

    @rule(number=which)
    def call_from_threads(self, number: int) -> None:
        layer = self.layer(number)
        inputs = [input_for(layer, seed) for seed in range(3)]
        results: dict[int, torch.Tensor | None] = {}

        def work(seed: int) -> None:
            with torch.no_grad():
                for _ in range(2):
                    results[seed] = self._call(layer, inputs[seed])

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed, x in enumerate(inputs):
            self._compare(layer, x, results[seed])

    @rule(number=which, kind=st.sampled_from(["sgd", "adam"]), lr=st.sampled_from([0.01, 0.3]), captured=st.booleans())
    def step(self, number: int, kind: str, lr: float, captured: bool) -> None:
        layer = self.layer(number)
        parameters = [p for p in layer.parameters() if p.requires_grad]
        if parameters and layer.dtype in (torch.float32, torch.float64):
            optimizer = (torch.optim.SGD if kind == "sgd" else torch.optim.Adam)(parameters, lr)

            def train_step(x: torch.Tensor) -> None:
                layer(x).square().mean().backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()

            (capture(train_step, layer, optimizer) if captured else train_step)(input_for(layer))

    @rule(number=which, seed=seeds)
    def differentiate(self, number: int, seed: int) -> None:
        """Gradients equal those of the slow computation."""
        layer = self.layer(number)
        parameters = [p for p in layer.parameters() if p.requires_grad]
        if not parameters or layer.dtype != torch.float64 or layer.generator.compute_dtype != torch.float64:
            return
        x = input_for(layer, seed)
        y = layer(x)
        grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=y.dtype)
        found = torch.autograd.grad(y, parameters, grad, allow_unused=True)
        for p, ours, wanted in zip(parameters, found, slow_gradients(layer, x, grad), strict=True):
            zero = torch.zeros_like(p)
            assert_near(zero if ours is None else ours, zero if wanted is None else wanted, 1e-7, "a gradient")

    @rule(number=which, missing=st.floats(0, 0.9), per_channel=st.booleans(), seed=seeds)
    def miss_samples(self, number: int, missing: float, per_channel: bool, seed: int) -> None:
        """Samples that were not observed are NaN, which must not matter."""
        layer = self.layer(number)
        x = input_for(layer, seed)
        chance = torch.Generator().manual_seed(seed)
        seen = torch.rand(x.shape[0], x.shape[1] if per_channel else 1, *x.shape[2:], generator=chance) >= missing
        seen.flatten(1)[:, 0] = True
        everywhere = seen.expand_as(x)
        given = x.masked_fill(~everywhere, float("nan"))
        filled = slow_fill(layer, x, everywhere)
        y = self._call(partial(layer, observed=seen), given)
        if layer.dtype == torch.float64 and layer.generator.compute_dtype == torch.float64:
            self._compare(layer, filled, y)
        else:
            assert y is None or y.isfinite().all()

    @rule(number=which, lengths=st.tuples(st.integers(1, 12), st.integers(1, 12)), seed=seeds)
    def pad_sequences(self, number: int, lengths: tuple[int, int], seed: int) -> None:
        """Values past the end of a sequence are NaN, which must not matter."""
        layer = self.layer(number)
        if layer.dims > 1 or layer.padding_mode != "zeros":
            return
        x = input_for(layer, seed)
        clipped = [min(n, x.shape[-1]) for n in lengths]
        for row, length in zip(x, clipped, strict=True):
            row[:, length:] = float("nan")
        y = self._call(partial(layer, lengths=torch.tensor(clipped)), x)
        for b, length in enumerate(clipped):
            alone = int(layer.output_lengths(torch.tensor([length]))[0])
            if y is not None and alone:
                self._compare(layer, x[b : b + 1, :, :length], y[b : b + 1, :, :alone])
                assert not y[b, :, alone:].any()

    @rule(number=which)
    def refresh(self, number: int) -> None:
        layer = self.layer(number)
        assert refresh_extents(layer) == {"": layer.extent} or layer.mask is None

    @rule(number=which)
    def make_plain(self, number: int) -> None:
        layer = self.layer(number)
        x = input_for(layer)
        try:
            with torch.no_grad():
                y = materialize(layer)(x)
        except FlexConvError:
            assert layer.dtype == torch.float16
            return
        self._compare(layer, x, y)

    @rule(number=which, chunks=st.lists(st.integers(0, 4), min_size=1, max_size=4))
    def stream(self, number: int, chunks: list[int]) -> None:
        layer = self.layer(number)
        causal = [axis.causal for axis in layer.axes]
        if sum(causal) != 1 or layer.padding_mode != "zeros" or (layer.padding == "causal" and layer.dims > 1):
            return
        x = input_for(layer)
        axis = 2 + causal.index(True)
        sizes = [*chunks, x.shape[axis]]
        stream, start, pieces = Streaming(layer), 0, []
        for size in sizes:
            piece = x.narrow(axis, start, min(size, x.shape[axis] - start))
            pieces.append(self._call(stream, piece))
            start += piece.shape[axis]
        if None not in pieces:
            self._compare(layer, x, torch.cat([p for p in pieces if p is not None], axis))

    @rule(
        number=which,
        refreshed=st.booleans(),
        backend=st.sampled_from(["eager", "eager", "aot_eager"]),
        one_in=st.integers(0, 3),
    )
    def compile(self, number: int, refreshed: bool, backend: str, one_in: int) -> None:
        """Compile a layer. Other actions follow before the compiled layer is called again."""
        layer = self.layer(number)
        if refreshed:
            refresh_extents(layer)
        if one_in or self.compiled is not None:
            return  # it takes a second, so only sometimes, and once
        if layer.dtype in (torch.float32, torch.float64):
            torch._dynamo.reset()
            self.compiled = layer, torch.compile(layer, backend=backend)
            self.call_compiled()

    @precondition(lambda self: self.compiled is not None)
    @rule()
    def call_compiled(self) -> None:
        assert self.compiled is not None
        layer, compiled = self.compiled
        if layer.dtype in (torch.float32, torch.float64) and not layer.generator._forward_hooks:
            x = input_for(layer)
            self._compare(layer, x, compiled(x).detach())

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def check_all(self) -> None:
        """Every layer equals the slow computation, with the training mode and gradients that it has now."""
        for layer in self.layers:
            x = input_for(layer)
            outputs = [self._call(layer, x)]
            with torch.no_grad():
                outputs.append(self._call(layer, x))
            self._compare(layer, x, *outputs)

    def _call(self, layer: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor | None:
        """The output; None if float16 cannot represent it, of which an error tells."""
        try:
            return layer(x).detach()
        except FlexConvError as error:
            assert "float16" in str(error)  # noqa: PT017
            return None

    def _compare(self, layer: flexnn.FlexConvNd, x: torch.Tensor, *outputs: torch.Tensor | None) -> None:
        count("layers", len(outputs))
        wanted = slow_output(layer, x)
        tolerance = max(TOLERANCE[layer.dtype], TOLERANCE[layer.generator.compute_dtype])
        for y in outputs:
            if y is not None:
                assert_near(y, wanted, tolerance, f"the output of {layer}", least=1e-3)


class _Times:
    """A hook that multiplies the output of a generator."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * self.factor


TestLayers = Layers.TestCase
TestLayers.settings = fuzz_settings(100, cost=10, stateful_step_count=12)
