"""A whole training step, forward + backward + Adam, by engine and precision: milliseconds, as Markdown.

    python -m benchmarks.step [--json FILE]

Random data of CIFAR-10's shape lies on the device; `step` is what training does between two batches, batches included.
Masks as they start (5×5 of 33×33), or opened to the whole grid. Needs a GPU; about two minutes on an H200.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.timing import machine
from flexconv import data, refresh_extents, train
from flexconv.nn import GaussianMask
from flexconv.train.display import Display
from flexconv.train.run import build_model, make_fabric


def splits(shape: tuple[int, ...], count: int) -> data.DataSplits:
    """Noise with random labels."""
    torch.manual_seed(0)
    inputs = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    split = data.Split(inputs, torch.randint(0, 10, (count,)), scale=1 / 255)
    return data.DataSplits("noise", split, None, None, tuple("0123456789"))


def measure(model: dict, shape: tuple[int, ...], *, full: bool, **settings) -> dict:
    """Median milliseconds of a step in a window of many, and the error of its first losses against float32 eager."""
    tree = {"model": model, "data": {"name": "cifar10", "augment": len(shape) == 3}, "epochs": 100}
    recipe = train.build_recipe(tree | settings)
    assert isinstance(recipe, train.Recipe)
    noise = splits(shape, recipe.batch_size * 40)
    fabric = make_fabric(recipe, "cuda")
    network = build_model(recipe, noise)
    if full:
        for module in network.modules():
            if isinstance(module, GaussianMask):
                torch.nn.init.constant_(module.sigma, 2.0)
    with tempfile.TemporaryDirectory() as folder:
        display = Display(None, epochs=1, steps_per_epoch=1)
        trainer = train.Trainer(network, noise, recipe, train.RunFolder(folder), fabric, display)
        trainer.forward_model.train()
        batches = trainer.train_batches
        losses, times = [], []
        torch.cuda.reset_peak_memory_stats()
        for epoch in range(3):
            trainer.progress.batch = 0
            torch.cuda.synchronize()
            began = time.perf_counter()
            for batch in batches.iterate(epoch=epoch):
                before = trainer._sums[0].clone() if epoch == 0 else None
                trainer._step(batch)
                if before is not None and len(losses) < 8:
                    losses.append((trainer._sums[0] - before).item() / recipe.batch_size)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) / len(batches) * 1e3)
        sizes = refresh_extents(network)
    return {
        "ms": statistics.median(times[1:]),
        "spread": max(times[1:]) - min(times[1:]),
        "losses": losses,
        "captures": getattr(trainer.engine, "captures", 0),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "sizes": sorted({"×".join(map(str, size)) for size in sizes.values()}),
    }


CASES = [
    ("FlexNet-7, batch 64", {"name": "flexnet7"}, (3, 32, 32), {"batch_size": 64}),
    ("FlexNet-7, batch 64, alias penalty", {"name": "flexnet7"}, (3, 32, 32), {"batch_size": 64, "alias": {}}),
    ("FlexNet-7, batch 512", {"name": "flexnet7"}, (3, 32, 32), {"batch_size": 512}),
    ("FlexTCN-6, batch 64, length 1024", {"name": "flextcn6"}, (3, 1024), {"batch_size": 64}),
    ("FlexTCN-6, batch 32, length 16000", {"name": "flextcn6"}, (1, 16000), {"batch_size": 32}),
]
WAYS = [("eager", "fp32"), ("graph", "fp32"), ("graph", "bf16")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    arguments = parser.parse_args()
    rows = []
    print("| case | masks | engine | precision | ms | spread | captures | GiB | loss 1 … 8 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number, (name, model, shape, settings) in enumerate(CASES):
        if arguments.only and number not in arguments.only:
            continue
        for full in (False, True):
            for engine, precision in WAYS:
                try:
                    row = measure(model, shape, full=full, engine=engine, precision=precision, **settings)
                except Exception as error:  # a case that fails must not cost the others
                    print(f"| {name} | {full} | {engine} | {precision} | {type(error).__name__}: {str(error)[:150]} |")
                    torch.cuda.synchronize()
                    continue
                rows.append({"case": name, "full": full, "engine": engine, "precision": precision, **row})
                print(
                    f"| {name} | {'full' if full else 'init'} | {engine} | {precision} | {row['ms']:.2f} | "
                    f"{row['spread']:.2f} | {row['captures']} | {row['peak_gib']:.1f} | "
                    f"{row['losses'][0]:.4f} … {row['losses'][-1]:.4f} |",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(torch.device("cuda")), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
