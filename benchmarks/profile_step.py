"""Which GPU kernels a replayed training step spends its time in.

python -m benchmarks.profile_step [--full] [--precision bf16]
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.profiler import ProfilerActivity, profile

from flexconv import train
from flexconv.bench._steps import noise
from flexconv.nn import GaussianMask
from flexconv.train.display import Display
from flexconv.train.run import build_model, make_fabric


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="masks opened to the whole grid")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rows", type=int, default=40)
    arguments = parser.parse_args()
    tree = {"model": {"name": "flexnet7"}, "data": {"name": "cifar10", "augment": True}, "batch_size": 64}
    recipe = train.build_recipe(tree | {"engine": "graph", "precision": arguments.precision})
    assert isinstance(recipe, train.Recipe)
    images = noise((3, 32, 32), 64 * 20)
    fabric = make_fabric(recipe, "cuda")
    network = build_model(recipe, images)
    for module in network.modules():
        if arguments.full and isinstance(module, GaussianMask):
            torch.nn.init.constant_(module.sigma, 2.0)
    with tempfile.TemporaryDirectory() as folder:
        display = Display(None, epochs=1, steps_per_epoch=1)
        trainer = train.Trainer(network, images, recipe, train.RunFolder(folder), fabric, display)
        trainer.forward_model.train()
        for epoch in range(2):
            trainer.progress.batch = 0
            for batch in trainer.train_batches.iterate(epoch=epoch):
                trainer._step(batch)
        graph = trainer.engine._graph  # type: ignore[attr-defined]
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(5):
                graph.replay()
            torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    spans: list[tuple[float, float]] = []
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.device_time_total > 0:
            entry = kernels.setdefault(event.name[:110], [0.0, 0.0])
            entry[0] += event.device_time_total / 5e3
            entry[1] += 1 / 5
            spans.append((event.time_range.start, event.time_range.end))
    spans.sort()
    busy, reach = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    total = sum(entry[0] for entry in kernels.values())
    print(f"{total:.2f} ms of kernels in a step, {len(spans) / 5:.0f} of them; the GPU busy for {busy / 5e3:.2f} ms, "
          f"from first to last {(reach - spans[0][0]) / 5e3:.2f} ms")  # fmt: skip
    for name, (ms, count) in sorted(kernels.items(), key=lambda item: -item[1][0])[: arguments.rows]:
        print(f"{ms:7.3f} ms {count:6.0f}  {name}")


if __name__ == "__main__":
    main()
