"""Captured training steps equal eager ones, and are captured again when something changes.

On a CPU, a fake graph records and replays the operations of a step.
"""

import copy
import itertools
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flexconv
from flexconv import FlexConv2d, create_model
from flexconv._fast import capture_errors
from flexconv._fast.capture import KINDS, PATIENCE, CapturedStep
from flexconv._fast.capture_errors import SYNC, host_reads
from flexconv._fast.capture_windows import STEPS_BETWEEN_CHECKS
from flexconv._fast.forwards import ForwardSampler
from flexconv.errors import ArgumentError, UsageError
from flexconv.nn import GaussianMask
from flexconv.ops._select import _launches_are_free

from .. import fake_graph
from ..conftest import mentions, relative_error
from ..fake_graph import FakeGraph, RunsOnce

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, fused=True),
}
ON_GPU = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam single": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.001),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=gpu)])
def device(request):
    return request.param


def captured(train_step, model, optimizer):
    """`flexconv.capture`, with a fake graph on a CPU."""
    models = model if isinstance(model, list) else [model]
    if next(models[0].parameters()).is_cuda:
        return flexconv.capture(train_step, model, optimizer, compile=False)
    optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
    return CapturedStep(train_step, models, optimizers, compile=False, recorder=FakeGraph)


def run_all(step, calls):
    """Call a step with all of these arguments, for `pytest.raises`."""
    for arguments in calls:
        step(*arguments)


def sequential(device="cpu", dropout=0.0):
    """A user's own network, with FlexConvs and plain layers."""
    torch.manual_seed(0)
    net = nn.Sequential(
        FlexConv2d(1, 4, 9, bias=False),  # Adam would turn the rounding noise of its gradient into a random walk
        nn.BatchNorm2d(4),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Conv2d(4, 4, 3, padding=1),
        FlexConv2d(4, 4, 17),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    return net.to(device)


def plain(device="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)


def batches(number, device="cpu", size=6, seed=0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(number):
        x = torch.randn(size, 1, 8, 8, generator=draw)
        yield x.to(device), (x.mean((1, 2, 3)) > 0).long().to(device)


def make_step(model, optimizer, clip=None):
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    return train_step


def losses_of(step, data, after=lambda: None):
    losses = []
    for batch in data:
        losses.append(step(*batch))
        after()
    return torch.stack(losses).tolist()


def two(make_model, make_optimizer, device="cpu", **options):
    """An eager step, a captured one, and their models and optimizers."""
    models = [make_model(device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [make_optimizer(model.parameters()) for model in models]
    steps = [make_step(*pair, **options) for pair in zip(models, optimizers, strict=True)]
    return steps[0], captured(steps[1], models[1], optimizers[1]), models, optimizers


def close(losses, rel=1e-3):
    """Losses that differ by rounding. On a GPU the windows of a capture may be convolved by another algorithm."""
    return pytest.approx(losses, rel=20 * rel if torch.cuda.is_available() else rel, abs=1e-4)


def assert_equal_models(first, second, rtol=1e-5, atol=1e-6):
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        tolerances = {"rtol": 50 * rtol, "atol": 50 * atol} if a.is_cuda else {"rtol": rtol, "atol": atol}
        torch.testing.assert_close(b, a, msg=lambda text, name=name: f"{name}: {text}", **tolerances)


# --- equality with the eager loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.1])
def test_losses_equal_the_eager_loop(name, clip, device):
    eager, step, models, _ = two(sequential, OPTIMIZERS[name], device, clip=clip)
    expected, losses = losses_of(eager, batches(20, device)), losses_of(step, batches(20, device))
    assert losses[:10] == close(expected[:10])
    assert losses == close(expected, rel=1e-2)
    assert step.captured
    assert step.captures >= 1
    assert_equal_models(*models, rtol=1e-2, atol=1e-3)


@gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_losses_equal_the_eager_loop_with_every_kind_of_optimizer(name):
    eager, step, _, optimizers = two(sequential, ON_GPU[name], "cuda")
    expected, losses = losses_of(eager, batches(20, "cuda")), losses_of(step, batches(20, "cuda"))
    assert losses[:10] == close(expected[:10])
    assert losses == close(expected, rel=1e-2)
    assert step.captured
    for ours, theirs in zip(optimizers[1].param_groups, optimizers[0].param_groups, strict=True):
        assert {k: v for k, v in ours.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}


@gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("compiled", [False, True])
def test_flexnet_equals_the_eager_loop(compiled):
    def flexnet(device):
        torch.manual_seed(0)
        return create_model("flexnet3", in_channels=1, num_classes=3, image_size=8, dropout=0.0).to(device)

    models = [flexnet("cuda") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True) for model in models]
    eager, own = (make_step(*pair) for pair in zip(models, optimizers, strict=True))
    step = flexconv.capture(own, models[1], optimizers[1], compile=compiled)
    expected = losses_of(eager, batches(20, "cuda"))
    losses = losses_of(step, batches(20, "cuda"))
    assert losses[:10] == close(expected[:10])
    assert losses == close(expected, rel=1e-2)
    assert step.captured


@gpu
@pytest.mark.timeout(600)
def test_compiled_sequential_equals_the_eager_loop():
    models = [sequential("cuda") for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
    eager, own = (make_step(*pair) for pair in zip(models, optimizers, strict=True))
    step = flexconv.capture(own, models[1], optimizers[1], compile=True)
    expected = losses_of(eager, batches(20, "cuda"))
    assert losses_of(step, batches(20, "cuda")) == close(expected, rel=1e-2)


@pytest.mark.parametrize("kind", ["step", "exponential", "cosine", "warm-up", "plateau"])
def test_schedulers_change_the_rate_of_a_replayed_step(kind, device):
    make = {
        "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.3),
        "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8),
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12),
        "warm-up": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=6),
        "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5, threshold=10),
    }[kind]
    eager, step, models, optimizers = two(plain, OPTIMIZERS["momentum"], device)
    for run, optimizer in zip((eager, step), optimizers, strict=True):
        scheduler = make(optimizer)
        arguments = (1.0,) if kind == "plateau" else ()
        losses_of(run, batches(12, device), after=lambda s=scheduler, a=arguments: s.step(*a))
    assert step.captures == 1
    assert optimizers[0].param_groups[0]["lr"] == optimizers[1].param_groups[0]["lr"]
    assert isinstance(optimizers[1].param_groups[0]["lr"], float)
    assert_equal_models(*models)


def test_rates_that_are_tensors(device):
    eager, step, models, _ = two(
        plain, lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01, device=device), fused=True), device
    )
    assert losses_of(step, batches(8, device)) == pytest.approx(losses_of(eager, batches(8, device)), rel=1e-4)
    assert_equal_models(*models, rtol=1e-4, atol=1e-5)


def test_last_batch_of_another_size_runs_eagerly(device):
    eager, step, models, _ = two(sequential, OPTIMIZERS["adam"], device)

    def epochs():
        for epoch in range(3):
            yield from batches(4, device, seed=epoch)
            yield from batches(1, device, size=4, seed=epoch + 9)

    expected = losses_of(eager, epochs())
    assert losses_of(step, epochs()) == close(expected)
    assert step.captured
    assert step.captures == 1
    assert_equal_models(*models, rtol=1e-2, atol=1e-3)


def test_captures_with_few_full_batches_per_epoch(device):
    _, step, _, _ = two(plain, OPTIMIZERS["adam"], device)
    for epoch in range(4):
        losses_of(step, batches(1, device, seed=epoch))
        losses_of(step, batches(1, device, size=3, seed=epoch))
    assert step.captures == 1


def test_captures_again_for_shapes_that_stay(device):
    eager, step, models, _ = two(plain, OPTIMIZERS["adam"], device)

    def growing():
        yield from batches(5, device, size=4)
        yield from batches(PATIENCE + 4, device, size=8)

    assert losses_of(step, growing()) == pytest.approx(losses_of(eager, growing()), rel=1e-4)
    assert step.captures == 2
    assert_equal_models(*models, rtol=1e-4, atol=1e-5)


def test_dropout_differs_between_replays(device):
    model = nn.Dropout(0.5)
    weight = nn.Parameter(torch.ones(256, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.0, fused=True)

    def train_step():
        optimizer.zero_grad()
        kept = model(weight)
        kept.sum().backward()
        optimizer.step()
        return kept

    step = captured(train_step, nn.ParameterList([weight]), optimizer)
    drawn = [step() for _ in range(6)]
    assert step.captured
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(drawn))


def test_several_models_and_optimizers(device):
    def build():
        nets = [sequential(device), plain(device)]
        return nets, [OPTIMIZERS["adam"](nets[0].parameters()), OPTIMIZERS["momentum"](nets[1].parameters())]

    def steps_of(nets, optimizers):
        def train_step(x, y):
            """The second network sees the first one after its optimizer step, as in adversarial training."""
            losses = []
            for net, optimizer in zip(nets, optimizers, strict=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x) + nets[0](x).detach(), y)
                loss.backward()
                optimizer.step()
                losses.append(loss)
            return {"first": losses[0], "both": losses}

        return train_step

    first, second = build(), build()
    eager, step = steps_of(*first), captured(steps_of(*second), *second)
    for batch in batches(8, device):
        expected, found = eager(*batch), step(*batch)
        assert found["first"].item() == pytest.approx(expected["first"].item(), rel=1e-3)
        assert found["both"][1].item() == pytest.approx(expected["both"][1].item(), rel=1e-3)
    assert step.captures == 1


def test_gradient_accumulation_inside_the_step(device):
    models = [sequential(device) for _ in range(2)]
    optimizers = [OPTIMIZERS["adam"](model.parameters()) for model in models]

    def step_of(model, optimizer):
        def train_step(parts):
            optimizer.zero_grad()
            for x, y in parts:
                (F.cross_entropy(model(x), y) / len(parts)).backward()
            optimizer.step()

        return train_step

    eager = step_of(models[0], optimizers[0])
    step = captured(step_of(models[1], optimizers[1]), models[1], optimizers[1])
    for epoch in range(6):
        for run in (eager, step):
            assert run(list(batches(3, device, seed=epoch))) is None
    assert step.captured
    assert_equal_models(*models, rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.timeout(600)
def test_compiled_step_with_several_forward_passes():
    models = [sequential("cuda") for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]

    def step_of(model, optimizer):
        def train_step(x, y):
            for half in (slice(0, 3), slice(3, 6)):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[half]), y[half])
                loss.backward()
                optimizer.step()
            return loss

        return train_step

    eager, own = (step_of(*pair) for pair in zip(models, optimizers, strict=True))
    step = flexconv.capture(own, models[1], optimizers[1])
    expected = losses_of(eager, batches(8, "cuda"))
    assert losses_of(step, batches(8, "cuda")) == close(expected, rel=1e-2)
    assert step.captured


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=gpu)])
@pytest.mark.parametrize("outside", [False, True])
def test_autocast(dtype, outside, device):
    if device == "cpu" and dtype == torch.float16:
        pytest.skip("GradScaler reads a value on a CPU")

    def run(capture):
        model = sequential(device)
        before = flat_parameters(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003, fused=True)
        scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16, growth_interval=4)

        def train_step(x, y):
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        step = captured(train_step, model, optimizer) if capture else train_step
        # torch keeps converted weights until the outermost context ends: an eager loop inside of it would use the
        # weights of the first step forever. Captured steps convert them in every step.
        with torch.autocast(device, dtype, enabled=outside, cache_enabled=capture):
            losses = losses_of(step, batches(12, device))
        return losses, flat_parameters(model) - before, scaler.state_dict(), getattr(step, "captured", True)

    expected, moved, scale, _ = run(False)
    losses, own_moved, own_scale, was_captured = run(True)
    assert was_captured
    # Rounding is a tenth of these limits. Weights that are not converted again exceed both, and masks that are not
    # trained the second one.
    assert losses == pytest.approx(expected, rel=1e-2)
    assert relative_error(own_moved, moved) < 0.1
    assert own_scale == scale


def flat_parameters(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@gpu
def test_grad_scaler_without_a_fused_optimizer_names_the_line():
    model = plain("cuda")
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda")

    def train_step(x, y):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()

    step = flexconv.capture(train_step, model, optimizer, compile=False)
    with pytest.raises(UsageError, match=mentions("scaler.step(optimizer)", "fused=True")):
        run_all(step, batches(4, "cuda"))


# --- inputs and outputs -----------------------------------------------------------------------------------------------


def test_inputs_and_outputs_are_trees(device):
    model = plain(device)
    optimizer = OPTIMIZERS["sgd"](model.parameters())

    def train_step(batch, *, weights, name):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["y"][0], weight=weights)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "name": name, "sizes": [batch["x"].sum(), None]}

    step = captured(train_step, model, optimizer)
    results = []
    for x, y in batches(6):  # in host memory
        results.append(step({"x": x, "y": (y,)}, weights=torch.ones(3), name="loss"))
        assert results[-1]["sizes"][0].item() == pytest.approx(x.sum().item(), rel=1e-3, abs=1e-3)
        assert results[-1]["name"] == "loss"
        assert not results[-1]["loss"].requires_grad
    assert step.captured
    assert len({result["loss"].item() for result in results}) == 6  # later steps do not change earlier results


def test_other_constants_run_eagerly(device):
    model = plain(device)
    optimizer = OPTIMIZERS["sgd"](model.parameters())

    def train_step(x, y, scale):
        optimizer.zero_grad()
        loss = scale * F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    reference = copy.deepcopy(model)
    step = captured(train_step, model, optimizer)
    for number, (x, y) in enumerate(batches(8, device)):
        reference.load_state_dict(model.state_dict())
        scale = 3.0 if number == 5 else 1.0
        assert step(x, y, scale).item() == pytest.approx(scale * F.cross_entropy(reference(x), y).item(), rel=1e-4)
    assert step.captures == 1


def test_constants_that_always_change_are_an_error(device):
    model = plain(device)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    step = captured(lambda _: None, model, optimizer)
    with pytest.raises(UsageError, match=mentions("another value in every call", "0.5", "as a tensor")):
        run_all(step, [(number + 0.5,) for number in range(KINDS + 2)])


def test_shapes_that_always_change_run_eagerly(device):
    _, step, _, _ = two(plain, OPTIMIZERS["sgd"], device)
    for size in range(2, KINDS + 6):
        losses_of(step, batches(1, device, size=size))
    assert not step.captured


def test_inputs_that_require_gradients_are_an_error(device):
    _, step, _, _ = two(plain, OPTIMIZERS["sgd"], device)
    for (x, y), needs in zip(batches(5, device), (False, False, False, False, True), strict=True):
        if needs:
            with pytest.raises(ArgumentError, match="requires a gradient"):
                step(x.requires_grad_(), y)
        else:
            step(x, y)


@pytest.mark.parametrize(
    "reads",
    [lambda loss: loss.item(), lambda loss: 1 if loss > 3 else 0, lambda loss: float(loss.detach())],
    ids=["item", "if", "float"],
)
def test_reading_a_value_is_an_error_that_names_the_line(reads, device, monkeypatch):
    monkeypatch.setattr(capture_errors, "OWN", (*capture_errors.OWN, fake_graph.__file__))
    model = plain(device)
    optimizer = OPTIMIZERS["adam"](model.parameters())

    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        number = reads(loss)
        loss.backward()
        optimizer.step()
        return number

    step = captured(train_step, model, optimizer)
    line = reads.__code__.co_firstlineno
    with pytest.raises(UsageError, match=mentions("cannot be captured", f"test_capture.py:{line}", "lambda loss")):
        run_all(step, batches(4, device))


@pytest.mark.filterwarnings("error")
def test_host_reads_are_found_before_the_capture(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with host_reads() as lines:
        warnings.warn(SYNC, UserWarning, stacklevel=1)  # as torch does
        other = threading.Thread(target=warnings.warn, args=(SYNC,))
        other.start()
        other.join()
    assert len(lines) == 1
    assert "test_capture.py" in lines[0]
    assert "warnings.warn(SYNC" in lines[0]
    assert modes == ["warn", 0]
    with host_reads() as lines, pytest.raises(UserWarning, match="another"):
        warnings.warn("another", UserWarning, stacklevel=1)
    assert lines == []


def test_host_reads_reset_the_mode_if_setting_it_raises(monkeypatch):
    modes = []

    def set_mode(mode):
        modes.append(mode)
        if mode == "warn":
            raise UserWarning("a prototype")  # torch changes the mode nevertheless

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with pytest.raises(UserWarning, match="prototype"), host_reads():
        pass
    assert modes == ["warn", 0]


@gpu
def test_host_reads_of_flexconv_itself_are_allowed():
    """The checks of lengths are left out during a capture."""
    model = flexconv.FlexConv1d(1, 2, 5, padding="causal").to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_step(x, lengths):
        optimizer.zero_grad()
        loss = model(x, lengths).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = flexconv.capture(train_step, model, optimizer, compile=False)
    for _ in range(4):
        step(torch.randn(2, 1, 9), torch.tensor([9, 4]))
    assert step.captured


@gpu
def test_refreshing_sizes_inside_the_step_is_an_error():
    model = sequential("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_step(x, y):
        make_step(model, optimizer)(x, y)
        flexconv.refresh_extents(model)

    step = flexconv.capture(train_step, model, optimizer, compile=False)
    with pytest.raises(UsageError, match=mentions("flexconv.refresh_extents(model)", "cannot be captured")):
        run_all(step, batches(4, "cuda"))
    torch.rand(3, device="cuda")  # random numbers still work


def test_errors_of_the_step_are_not_replaced(device):
    model = plain(device)
    step = captured(lambda x: model(x), model, OPTIMIZERS["adam"](model.parameters()))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        step(torch.zeros(3, 7, device=device))


def test_results_on_the_host_are_an_error():
    model = plain()
    optimizer = OPTIMIZERS["adam"](model.parameters())

    class Elsewhere(CapturedStep):
        device = torch.device("meta")

        def _works_here(self):
            return True

    step = Elsewhere(lambda: torch.zeros(()), [model], [optimizer], compile=False, recorder=FakeGraph)
    with pytest.raises(UsageError, match=mentions("on cpu", "outside")):
        run_all(step, [(), (), ()])


# --- what changes between steps ---------------------------------------------------------------------------------------


def changed_run(device, change, make_model=sequential, make_optimizer=OPTIMIZERS["adam"]):
    """Losses of an eager and a captured loop, with a change of model and optimizer after five steps."""
    eager, step, models, optimizers = two(make_model, make_optimizer, device)
    found = []
    for run, model, optimizer in zip((eager, step), models, optimizers, strict=True):
        losses = losses_of(run, batches(5, device))
        change(model, optimizer)
        found.append(losses + losses_of(run, batches(8, device, seed=1)))
    assert found[1] == close(found[0], rel=2e-3)
    assert_equal_models(*models, rtol=1e-2, atol=2e-3)
    return step


def load_weights(model, _):
    torch.manual_seed(3)
    state = {
        k: v + 0.1 * torch.randn(v.shape).to(v) if v.is_floating_point() else v for k, v in model.state_dict().items()
    }
    model.load_state_dict(state)


def load_optimizer(model, optimizer):
    """As if the run had been resumed from a checkpoint of a fresh optimizer that has made a step."""
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for state in optimizer.state.values():
        state["exp_avg"].zero_()


@pytest.mark.parametrize(
    ("change", "captures"),
    [
        (lambda model, _: model.eval(), 2),
        (lambda model, _: model[4].requires_grad_(False), 2),
        (lambda model, _: setattr(model[1], "momentum", 0.5), 2),
        (lambda _, optimizer: optimizer.param_groups[0].update(weight_decay=0.3), 2),
        (lambda _, optimizer: optimizer.param_groups[0].update(betas=(0.5, 0.9)), 2),
        (lambda _, optimizer: optimizer.param_groups[0].update(lr=0.1), 1),
        (lambda _, optimizer: optimizer.zero_grad(), 1),
        (lambda _, optimizer: optimizer.zero_grad(set_to_none=False), 1),
        (load_weights, None),
        (load_optimizer, 2),
        (lambda model, _: model.__setitem__(2, nn.Tanh()), 2),
        (lambda model, _: model[6].register_forward_hook(lambda _, __, out: 2 * out), 2),
        (lambda model, _: (model.double(), model.float()), None),
    ],
    ids=[
        "eval", "requires_grad", "momentum", "weight decay", "betas", "lr", "cleared", "zeroed", "weights", "optimizer",
        "module", "hook", "converted",
    ],
)  # fmt: skip
def test_changes_between_steps(change, captures, device):
    step = changed_run(device, change)
    assert step.captured
    assert captures is None or step.captures == captures


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_cleared_outside_the_step(set_to_none, device):
    models = [plain(device) for _ in range(2)]
    optimizers = [OPTIMIZERS["momentum"](model.parameters()) for model in models]

    def step_of(model, optimizer):
        def train_step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return train_step

    eager = step_of(models[0], optimizers[0])
    step = captured(step_of(models[1], optimizers[1]), models[1], optimizers[1])
    for run, optimizer in zip((eager, step), optimizers, strict=True):
        for number, batch in enumerate(batches(16, device)):
            run(*batch)
            if number != 9:  # once, they are added to those of the next step
                optimizer.zero_grad(set_to_none=set_to_none)
    assert_equal_models(*models, rtol=1e-4, atol=1e-5)
    assert step.captures == (2 if set_to_none else 1)


def test_gradients_are_those_of_the_last_step(device):
    eager, step, models, _ = two(plain, OPTIMIZERS["sgd"], device)
    for batch in batches(6, device):
        for run, model in zip((eager, step), models, strict=True):
            model.zero_grad()
            run(*batch)
        for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def test_something_that_changes_in_every_step_is_an_error(device):
    _, step, _, optimizers = two(plain, OPTIMIZERS["momentum"], device)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizers[1], 0.1, total_steps=40)
    with pytest.raises(UsageError, match=mentions("a setting of the optimizer", "cycle_momentum=False")):
        losses_of(step, batches(40, device), after=scheduler.step)


def test_scheduler_inside_the_step_is_an_error(device):
    model = plain(device)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def train_step(x, y):
        make_step(model, optimizer)(x, y)
        scheduler.step()

    step = captured(train_step, model, optimizer)
    (batch,) = batches(1, device)
    with pytest.raises(UsageError, match=mentions("learning rate", "scheduler.step()")):
        step(*batch)


def test_evaluation_between_steps_uses_current_weights(device):
    eager, step, models, _ = two(sequential, OPTIMIZERS["adam"], device)
    (x, _), = batches(1, device, seed=5)  # fmt: skip
    for batch in batches(8, device):
        outputs = []
        for run, model in zip((eager, step), models, strict=True):
            run(*batch)
            model.eval()
            with torch.no_grad():
                outputs.append(model(x))
            model.train()
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-2, atol=1e-3 if device == "cpu" else 0.02)
        assert [m.extent for m in models[1] if isinstance(m, FlexConv2d)] == [
            m.extent for m in models[0] if isinstance(m, FlexConv2d)
        ]
    assert step.captures == 1


def test_optimizer_state_equals_that_of_the_eager_loop(device):
    eager, step, _, optimizers = two(plain, OPTIMIZERS["adam"], device)
    for run in (eager, step):
        losses_of(run, batches(7, device))
    theirs, ours = (optimizer.state_dict() for optimizer in optimizers)
    assert ours["param_groups"] == theirs["param_groups"]
    for number, state in theirs["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(ours["state"][number][name], value, rtol=1e-3, atol=1e-6)


@gpu
def test_optimizer_state_can_be_loaded_without_capture():
    eager, step, models, optimizers = two(plain, lambda p: torch.optim.Adam(p, lr=0.01), "cuda")
    for run in (eager, step):
        losses_of(run, batches(7, "cuda"))
    fresh = torch.optim.Adam(models[1].parameters(), lr=0.5)
    fresh.load_state_dict(optimizers[1].state_dict())
    again = make_step(models[1], fresh)
    expected = losses_of(eager, batches(4, "cuda", seed=2))
    assert losses_of(again, batches(4, "cuda", seed=2)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("how", ["weights", "training", "data"])
def test_captures_again_if_a_mask_leaves_its_window(how, device):
    eager, step, models, _ = two(sequential, lambda p: torch.optim.SGD(p, lr=1e-3, fused=True), device)
    found = []
    for run, model in zip((eager, step), models, strict=True):
        losses = losses_of(run, batches(STEPS_BETWEEN_CHECKS, device))
        sigma = model[5].mask
        assert isinstance(sigma, GaussianMask)
        before = model[5].extent
        if how == "weights":
            state = {name: value.clone() for name, value in model.state_dict().items()}
            other = sequential(device)
            other[5].mask.set_(sigma=0.6)
            state |= {k: v for k, v in other.state_dict().items() if k.startswith("5.mask")}
            model.load_state_dict(state)
        elif how == "data":
            other = sequential(device)
            other[5].mask.set_(sigma=0.6)
            state = other[5].mask.state_dict()
            for name, ours in model[5].mask.state_dict().items():
                ours.data.copy_(state[name])  # is not noticed before the next check
        else:
            model[5].mask.set_(sigma=0.6)
        late = losses_of(run, batches(3 * STEPS_BETWEEN_CHECKS, device, seed=1))
        found.append(losses + (late if how != "data" else []))
        assert model[5].extent > before
    assert found[1] == close(found[0], rel=2e-3)
    assert step.captures == 2


def test_windows_allow_for_optimizers_with_large_steps():
    """The mask moves by more than its learning rate."""
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
    step = captured(lambda: None, model, optimizer)
    windows = step.windows
    windows.hold()
    windows.still_fit()
    bounds = windows._bounds(windows._packed())
    source = windows.layers[0][1]
    assert windows._room(source, bounds[0]) < 1e-3
    assert windows._room(source, bounds[0], moved=0.1) == pytest.approx(0.2)


def test_model_that_moves_between_devices():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model = plain("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = flexconv.capture(make_step(model, optimizer), model, optimizer, compile=False)
    losses_of(step, batches(4, "cpu"))
    assert not step.captured
    model.to("cuda")
    losses_of(step, batches(4, "cpu"))
    assert step.captured
    model.to("cpu")
    losses_of(step, batches(4, "cpu"))
    assert not step.captured


def test_algorithms_are_chosen_as_for_captured_code(device):
    """Also in the steps before a capture, which must compute what the graph will compute."""
    model = plain(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    train_step, free = make_step(model, optimizer), []

    def step(x, y):
        free.append(_launches_are_free.get())
        return train_step(x, y)

    run_all(captured(step, model, optimizer), batches(6, device))
    assert free
    assert all(free)
    assert not _launches_are_free.get()


# --- kernels sampled at the start of a forward pass -------------------------------------------------------------------


def test_forward_sampler_gives_the_same_gradients():
    model = sequential()
    sampler = ForwardSampler(model)
    (x, y), = batches(1)  # fmt: skip
    grads = []
    for together in (False, True):
        model.zero_grad()
        context = sampler.active() if together else torch.enable_grad()
        with context:
            for _ in range(2):  # two forward passes, each with kernels of its own
                F.cross_entropy(model(x), y).backward()
            model[5](torch.zeros(1, 4, 8, 8))  # one layer alone
        grads.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    for ours, theirs in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert all(layer._provider.prepared is None for layer in model if isinstance(layer, FlexConv2d))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quick_compiler")
def test_compiled_steps_equal_eager_steps():
    """The warm-up steps and the recorded one, with several forward passes and optimizer steps each."""
    models = [create_model("flexnet3", in_channels=1, num_classes=3, image_size=8, widths=[2]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]

    def step_of(model, optimizer):
        def train_step(x, y):
            for part in (slice(0, 3), slice(3, 6)):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[part]), y[part])
                loss.backward()
                optimizer.step()
            return loss

        return train_step

    eager, own = (step_of(*pair) for pair in zip(models, optimizers, strict=True))
    step = CapturedStep(own, [models[1]], [optimizers[1]], compile=True, recorder=RunsOnce)
    for module in (module for model in models for module in model.modules() if isinstance(module, nn.Dropout)):
        module.p = 0.0
    expected = losses_of(eager, batches(3))
    assert losses_of(step, batches(3)) == pytest.approx(expected, rel=1e-3)
    assert step.captures == 1
    assert not any("forward" in vars(module) for module in models[1].modules())


def test_models_that_are_compiled_already_are_used_as_they_are():
    model = torch.compile(plain())
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    assert not CapturedStep(print, [model], [optimizer], compile=True).compile
    assert CapturedStep(print, [plain()], [optimizer], compile=True).compile


def test_forward_sampler_ends_after_an_error():
    model = sequential()
    sampler = ForwardSampler(model)
    with sampler.active():
        with pytest.raises(ValueError, match="channels"):
            model(torch.zeros(1, 2, 8, 8))
        assert all(layer._provider.prepared is None for layer in model if isinstance(layer, FlexConv2d))
        model(torch.zeros(2, 1, 8, 8))
