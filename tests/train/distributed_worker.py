"""Run a few training steps in one or several processes and record losses and gradients. Used by test_distributed.py.

python -m tests.train.distributed_worker OUT PRECISION ENGINE           (under torchrun)
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import torch
from lightning_fabric import Fabric
from torch._inductor import config

from flexconv import data, train
from flexconv._fast.kernel_sampler import KernelSampler
from flexconv.train import build_model, leave_processes, make_fabric
from flexconv.train.display import Display
from flexconv.train.sync_norm import synchronise_norms
from tests.train.tiny import tiny_recipe

STEPS = 4


def main(out: str, precision: str, engine: str) -> None:
    torch.set_num_threads(1)
    config.cpp.simdlen = 0  # compiling takes half the time without vector instructions
    recipe = small_recipe(precision, engine)
    fabric = make_fabric(recipe, "cpu")
    record = measure(recipe, fabric, out)
    if fabric.is_global_zero:
        torch.save(record, out)
    leave_processes(fabric)
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").glob("*")]
    assert not any("gloo" in name for name in threads), threads  # a thread that is left could abort the exit


def small_recipe(precision: str, engine: str) -> train.Recipe:
    # 61 samples per step are not divisible by two. Three things are left out because they differ between one and two
    # processes: dropout draws other numbers; a mask below its minimum width passes only gradients that widen it, which
    # each process decides by itself; and the gradient of the norm of a bias near 0 has an arbitrary direction.
    model = {"name": "flexnet3", "widths": [3], "dropout": 0.0}
    model |= {"generator_options": {"hidden": 4}, "mask_options": {"sigma": 0.2}}
    return tiny_recipe(precision=precision, engine=engine, batch_size=61, model=model, optim={"lr": 0.02})


def measure(recipe: train.Recipe, fabric: Fabric, out: str) -> dict[str, object]:
    splits = data.load("digits", validation=0.2)
    network = build_model(recipe, splits)
    if fabric.world_size > 1:
        synchronise_norms(network)
    display = Display(None, epochs=1, steps_per_epoch=1)
    trainer = train.Trainer(network, splits, recipe, train.RunFolder(out), fabric, display)
    record: dict[str, object] = {"losses": [], "gradients": [], "sampled together": 0}
    ahead = KernelSampler.ahead

    def counted(kernels: KernelSampler) -> AbstractContextManager[None]:
        record["sampled together"] += 1  # type: ignore[operator]
        return ahead(kernels)

    for batch, _ in zip(trainer.train_batches.iterate(epoch=0), range(STEPS), strict=False):
        before = trainer.sums[0].clone()
        with patch.object(KernelSampler, "ahead", counted):
            trainer.step(batch)
        loss = trainer.sums[0] - before
        if fabric.world_size > 1:
            torch.distributed.all_reduce(loss)
        record["losses"].append(loss.item() / 61)  # type: ignore[attr-defined]
        gradients = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
        record["gradients"].append(gradients)  # type: ignore[attr-defined]
    record["statistics"] = {name: value.clone() for name, value in network.named_buffers()}
    score = train.evaluate(trainer.forward_model, trainer.validation_batches)
    record["validation"] = (score.loss, score.accuracy, score.count)
    return record


if __name__ == "__main__":
    main(*sys.argv[1:])
