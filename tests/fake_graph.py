"""Stand-ins for CUDA graphs, for tests without a GPU."""

import contextlib

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .host_syncs import SYNCS


class RunsOnce:
    """Records a step by running it, and replays nothing."""

    @staticmethod
    def works_on(_):
        return True

    @staticmethod
    def warm_up(run):
        return run()

    @staticmethod
    def host_reads():
        return contextlib.nullcontext([])

    def record(self, run):
        return run()

    def replay(self):
        pass


class FakeGraph(RunsOnce, TorchDispatchMode):
    """Records all operations of a step on a CPU, and replays them with the same tensors, as a CUDA graph does.

    Unlike a capture, recording a step runs it. So the first replay does nothing.
    """

    def __init__(self):
        super().__init__()
        self.operations, self.recorded = [], False

    def record(self, run):
        with self:
            result = run()
        self.recorded = True
        return result

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in SYNCS - {"lift_fresh"}:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, pytree.tree_leaves(result)))
        return result

    def replay(self):
        if self.recorded:
            self.recorded = False
            return
        with torch.no_grad(), torch.autocast("cpu", enabled=False):  # what was recorded includes its conversions
            for func, args, kwargs, outputs in self.operations:
                for output, new in zip(outputs, pytree.tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(output, torch.Tensor) and output.data_ptr() != new.data_ptr():
                        output.copy_(new)
