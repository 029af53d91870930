"""Training steps that are captured once as a CUDA graph and then replayed, without work on the host.

The kernel sizes in a graph are fixed, with room to grow. When a mask comes close to the edge of its window, or becomes
much smaller than it, the step is captured again. A few steps before each capture run without a graph. They are training
steps like any other, and do what must not happen during a capture, such as compilation.
"""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .._registry import provide
from ..capture import TrainStep, check_argument, constant_rates, copied, detached, on_device
from ..errors import UsageError, first_line
from ..nn import parameters_changed, refresh_extents
from ..ops import launches_are_free
from .blocks import fused_blocks
from .capture_errors import host_reads, users_line
from .capture_optim import CapturableOptimizer
from .capture_state import CapturedGradients, CapturedState
from .capture_windows import STEPS_BETWEEN_CHECKS, CaptureWindows
from .forwards import ForwardSampler
from .kernel_sampler import KernelSampler
from .regions import compiled_regions
from .step import fast_step

if TYPE_CHECKING:
    from ..data import Batch

P = ParamSpec("P")
R = TypeVar("R")

WARM_STEPS = 2
PATIENCE = 8  # calls with other shapes in a row after which the step is captured for these
KINDS = 16  # of calls that are told apart before the first capture
SHORT_LIVES = 3  # graphs in a row that were replayed only once


# --- the graph --------------------------------------------------------------------------------------------------------


class Recorder(Protocol):
    """Records a step, and replays it. `CudaRecorder` is the real one."""

    @staticmethod
    def works_on(device: torch.device) -> bool: ...

    @staticmethod
    def warm_up(run: Callable[[], R]) -> R: ...

    @staticmethod
    def host_reads() -> AbstractContextManager[list[str]]: ...

    def record(self, run: Callable[[], R]) -> R: ...

    def replay(self) -> None: ...


class CudaRecorder:
    """A CUDA graph of one step."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    @staticmethod
    def works_on(device: torch.device) -> bool:
        return device.type == "cuda"

    @staticmethod
    def warm_up(run: Callable[[], R]) -> R:
        """Run a step on a separate stream, as it will be captured, so that libraries allocate their workspaces."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result = run()
        torch.cuda.current_stream().wait_stream(side)
        return result

    @staticmethod
    def host_reads() -> AbstractContextManager[list[str]]:
        return host_reads()

    def record(self, run: Callable[[], R]) -> R:
        """Capture the operations of a step without running them.

        Garbage collection is off, because deleting another graph would end the capture. Other threads may use the
        device: one of them may copy the next batches to pinned memory.
        """
        collecting = gc.isenabled()
        gc.disable()
        restored = torch.cuda.stream(torch.cuda.current_stream())  # also after a failed capture
        try:
            with restored, torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                return run()
        finally:
            if collecting:
                gc.enable()

    def replay(self) -> None:
        self._graph.replay()


# --- the step ---------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """The arguments of one call, as a list of tensors and constants, and what must be the same in a replay."""

    leaves: list[Any]
    spec: pytree.TreeSpec
    key: tuple[object, ...]

    @classmethod
    def of(cls, arguments: Any) -> Call:
        leaves, spec = pytree.tree_flatten(arguments)
        return cls(leaves, spec, (str(spec), *map(_kind, leaves)))


def _kind(leaf: Any) -> object:
    """What must be the same in a replay: shape and dtype of a tensor, or type and value of a constant."""
    check_argument(leaf)
    return (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf)


class Captured(NamedTuple):
    """A captured step, with everything that its graph reads or writes."""

    graph: Recorder
    key: tuple[object, ...]
    inputs: list[Any]
    outputs: Any
    state: CapturedState
    gradients: CapturedGradients
    kernels: object

    def change(self) -> str | None:
        return self.state.change() or self.gradients.change()


class CapturedStep(TrainStep[P, R]):
    """Runs `train_step` as a replayed graph. `flexconv.capture` describes the arguments."""

    def __init__(
        self,
        train_step: Callable[P, R],
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        compile: bool,  # noqa: A002
        recorder: type[Recorder] = CudaRecorder,
    ) -> None:
        super().__init__(train_step, models, optimizers)
        self.model = self.models[0] if len(self.models) == 1 else nn.ModuleList(self.models)
        self.compile = compile and not any(map(_is_compiled, self.model.modules()))
        self.recorder = recorder
        self.windows = CaptureWindows(self.model, self.optimizers)
        self._capturable = [CapturableOptimizer(each) for each in self.optimizers]
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # warm-up steps use another stream
        self._captured: Captured | None = None
        self._kernels: object = None
        self._warm_state: CapturedState | None = None  # after the last warm-up step
        self._warm: Counter[tuple[object, ...]] = Counter()  # warm-up steps by kind of call
        self._dropped = False  # whether there was a reason to start again
        self._calls = self._replays = self._others = self._short_lives = 0

    @property
    def captured(self) -> bool:
        """Whether the step is captured, so that the next call can replay it."""
        return self._captured is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one training step."""
        if not self._works_here():
            if self._captured is not None:
                self._drop()
            return super().__call__(*args, **kwargs)
        self._calls += 1
        if (self._calls % STEPS_BETWEEN_CHECKS == 0 and not self.windows.still_fit()) or (
            not self.windows.fit_after_changes()
        ):
            self._drop()
        call = Call.of((args, kwargs))
        if self._captured is not None and call.key != self._captured.key:
            self._others += 1
            if self._others < PATIENCE:
                return self._run_eagerly(*args, **kwargs)
            self._drop()
        self._others = 0
        state = self._captured or self._warm_state
        if state is not None and (change := state.change()) is not None:
            self._replace_graph(change)
        if self._captured is not None:
            return self._replay(self._captured, call)
        if self._warm[call.key] >= WARM_STEPS:
            return self._replay(self._capture(call), call)
        self._warm[call.key] += 1
        self._check_kinds()
        # the first step does things that later ones do not; so may those after a change
        return self._warm_up(args, kwargs, check=self._warm[call.key] == WARM_STEPS and not self._dropped)

    # --- the ways to run it -------------------------------------------------------------------------------------------

    def _run_eagerly(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a step that is not captured, operation by operation."""
        refresh_extents(self.model)
        args, kwargs = on_device((args, kwargs), self.device)  # type: ignore[assignment]
        with self._ready():
            result = self.train_step(*args, **kwargs)
        self.windows.note_versions()
        return copied(result)

    def _warm_up(self, args: Any, kwargs: Any, *, check: bool) -> R:
        """Run a step as it will be captured. If `check`, raise an error for lines that cannot be captured.

        A failed capture would name them, too, but leaves the random numbers of the device in a state without repair.
        """
        args, kwargs = on_device((args, kwargs), self.device)  # type: ignore[assignment]
        result = self._run(self._checked_warm_up if check else self.recorder.warm_up, args, kwargs, capturing=False)
        self._warm_state = CapturedState(self.model, self.optimizers)
        return copied(result)

    def _checked_warm_up(self, run: Callable[[], R]) -> R:
        with self.recorder.host_reads() as lines:
            result = self.recorder.warm_up(run)
        if lines:
            raise UsageError(_cannot_be_captured(lines[0], "the host waits for the device"))
        return result

    def _capture(self, call: Call) -> Captured:
        device = self.device
        inputs = [
            torch.empty_like(leaf, device=device).copy_(leaf) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in call.leaves
        ]
        args, kwargs = pytree.tree_unflatten(inputs, call.spec)
        gradients = CapturedGradients(self._parameters())
        graph = self.recorder()
        outputs = self._run(graph.record, args, kwargs, capturing=True)
        for output in pytree.tree_leaves(outputs):
            if isinstance(output, torch.Tensor) and output.device != device:
                raise UsageError(
                    f"the training step returns a tensor on {output.device}, which a captured step cannot: return it "
                    f"on {device}, and copy it outside"
                )
        gradients.captured()
        state = CapturedState(self.model, self.optimizers)
        self._captured = Captured(graph, call.key, inputs, detached(outputs), state, gradients, self._kernels)
        self.captures += 1
        self._replays = 0
        return self._captured

    def _replay(self, captured: Captured, call: Call) -> R:
        for buffer, given in zip(captured.inputs, call.leaves, strict=True):
            if isinstance(buffer, torch.Tensor):
                buffer.copy_(given, non_blocking=True)
        for each in self._capturable:
            each.fill_rates()
        captured.graph.replay()
        captured.gradients.replayed()
        parameters_changed()
        self._replays += 1
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, captured.outputs)

    def _run(self, way: Callable[[Callable[[], R]], R], args: Any, kwargs: Any, *, capturing: bool) -> R:
        """Run or capture a step with the windows of the capture."""
        step: Callable[..., R] = self.train_step
        with self.windows.held(), self._ready(), launches_are_free():
            fast = self._prepare()
            failures: list[Exception] = []  # ending a failed capture raises another error

            def run() -> R:
                try:
                    with fast:
                        return step(*args, **kwargs)
                except Exception as error:
                    failures.append(error)
                    raise

            try:
                return way(run)
            except Exception as error:
                explanation = self._explain(failures[0] if failures else error, capturing=capturing)
                if explanation is None:
                    raise
                raise UsageError(explanation) from error

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        """Inside, optimizer steps can be captured, and weights are converted as they are now.

        Within an autocast context of the caller, torch would convert them once and use the result in all later steps.
        """
        with contextlib.ExitStack() as stack:
            for each in self._capturable:
                stack.enter_context(each.ready())
            torch.clear_autocast_cache()
            stack.callback(torch.clear_autocast_cache)
            with constant_rates(self.optimizers):
                yield

    def _prepare(self) -> AbstractContextManager[None]:
        """Return a context in which a step at the current windows runs fast."""
        if not self.compile:
            return contextlib.nullcontext()
        if self._kernels is None:  # must live as long as the graph, which reads its coordinates
            self._kernels = ForwardSampler(self.model)
        return _fast_forwards(self.model, self._kernels)  # type: ignore[arg-type]

    def _explain(self, error: Exception, *, capturing: bool) -> str | None:
        """Return a message that replaces an error, or None if the error is the user's."""
        if capturing:
            return _cannot_be_captured(users_line(traceback.extract_tb(error.__traceback__)), first_line(error))
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            return f"the training step cannot be compiled ({first_line(error)}); pass compile=False to flexconv.capture"
        return None

    # --- when to capture again ----------------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Forget the graph. The next step is a warm-up step at new windows, the one after it is captured."""
        self._captured = self._kernels = self._warm_state = None
        self._dropped = True
        self._warm = Counter({key: min(count, WARM_STEPS - 1) for key, count in self._warm.items()})
        self.windows.release()

    def _replace_graph(self, change: str) -> None:
        """Forget the graph because something has changed. Raises an error if it changes in every step."""
        self._short_lives = self._short_lives + 1 if self._replays <= 1 else 0
        if self._short_lives == SHORT_LIVES:
            raise UsageError(
                f"the training step cannot be replayed, because this changes in every step: {change}. Gradients must "
                "be cleared inside the step, or before every step; to accumulate them, loop over the parts of a batch "
                "inside the step; schedulers may change learning rates only (OneCycleLR: cycle_momentum=False)"
            )
        self._drop()
        self.windows = CaptureWindows(self.model, self.optimizers)  # modules may have changed, too

    def _check_kinds(self) -> None:
        """Raise an error if constants are different in every call, which would never be captured."""
        if len(self._warm) <= KINDS:
            return
        first, last = (list(self._warm)[number] for number in (0, -1))
        self._warm.clear()
        for a, b in zip(first[1:], last[1:], strict=False):
            if a != b and not isinstance(b[0], torch.Size):  # type: ignore[index]
                raise UsageError(
                    f"the training step cannot be captured, because an argument has another value in every call, such "
                    f"as {a[1]!r} and {b[1]!r}: pass it as a tensor"  # type: ignore[index]
                )

    def _works_here(self) -> bool:
        """Whether steps can be captured on the device of the parameters."""
        if self._captured is not None:
            return self.recorder.works_on(self.device)
        devices = {parameter.device for parameter in self._parameters()}
        return len(devices) == 1 and self.recorder.works_on(devices.pop())

    def _parameters(self) -> list[torch.Tensor]:
        """All parameters of models and optimizers."""
        groups = [group for each in self.optimizers for group in each.param_groups]
        return list(dict.fromkeys([*self.model.parameters(), *(p for group in groups for p in group["params"])]))


def _cannot_be_captured(line: str, reason: str) -> str:
    return (
        f"the training step cannot be captured: {line} ({reason}). A captured step cannot read values on the device "
        "(item, cpu, tolist, print, if): return the tensor and read it outside. It cannot copy constants to the "
        "device: create them outside. A GradScaler needs an optimizer with fused=True"
    )


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


@contextlib.contextmanager
def _fast_forwards(model: nn.Module, kernels: ForwardSampler) -> Iterator[None]:
    """As `fast_step`, for steps with any number of forward passes."""
    with compiled_regions(), fused_blocks(model), kernels.active():
        yield


# --- the engine of `flexconv train` -----------------------------------------------------------------------------------


class GraphEngine(CapturedStep[["Batch", float], None]):
    """Runs `compute(batch, sample_weight)` as a replayed graph. Batches that are not full run without a graph."""

    name = "graph"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        compute: Callable[[Batch, float], None],
        batch_size: int,
        *,
        recorder: type[Recorder] = CudaRecorder,
    ) -> None:
        super().__init__(compute, [model], [optimizer], compile=True, recorder=recorder)
        self.batch_size = batch_size

    def step(self, batch: Batch, sample_weight: float) -> None:
        """Run one training step."""
        run = self if len(batch[1]) == self.batch_size else self._run_eagerly
        run(batch, sample_weight)

    def _warm_up(self, args: Any, kwargs: Any, *, check: bool) -> None:  # noqa: ARG002
        """The steps of `flexconv train` read nothing."""
        super()._warm_up(args, kwargs, check=False)

    def _prepare(self) -> AbstractContextManager[None]:
        """A step has one forward pass, and its penalties can use the same kernels."""
        self._kernels = KernelSampler(self.model)
        return fast_step(self.model, self._kernels)

    def _explain(self, error: Exception, *, capturing: bool) -> str:
        way = "captured" if capturing else "compiled"
        advice = "use engine=eager, also to resume this run"
        return f"training steps of this network cannot be {way} ({first_line(error)}); {advice}"


provide("capture.step", CapturedStep)
provide("train.graph_engine", GraphEngine)
