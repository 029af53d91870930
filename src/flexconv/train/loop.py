"""The training loop: steps, epochs, and the state from which a run can be resumed between any two steps.

All randomness of a step follows from (seed, step, rank): the order and augmentation of the data from the seed and the
epoch, dropout from a seed that is set before every step. So there is no random state to save. A resumed run continues
as the uninterrupted one would have, bit for bit on a CPU, and also on a GPU if the recipe is deterministic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from rich.markup import escape
from torch import nn

from .._registry import has_fast_version
from ..data import Batch, DataSplits, DeviceBatches
from ..errors import ArgumentError, MissingPackageError, UsageError
from ..nn import refresh_extents
from .checkpoint import CheckpointError, checkpoint_step, checkpoints, newest_checkpoint, save_checkpoint
from .display import Display
from .engine import EagerEngine, make_engine
from .evaluate import Score, evaluate, forward
from .folder import RunError, RunFolder, compare_recipes, recipe_text
from .optim import Schedule, check_same_settings, make_optimizer, penalties
from .recipe import Recipe
from .stopping import Interrupted, stop_on_signal

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SHOW_SECONDS = 0.5  # between updates of the display, each of which synchronizes with the device


class DivergedError(UsageError):
    """The loss is no longer finite."""


@dataclass
class Progress:
    """The state of a run between two steps, apart from model and optimizer."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # number of the next batch in the epoch
    loss_sum: float = 0.0  # over the samples that this process has seen in this epoch
    right: float = 0.0
    seen: int = 0
    seconds: float = 0.0  # of training, over all sessions
    epoch_began: float = 0.0  # value of `seconds` at the start of the epoch
    metrics_bytes: int = 0
    best: dict[str, float] = field(default_factory=dict)  # epoch and scores of the selected weights


class Trainer:
    """Trains a model by a recipe and writes the run folder.

    Arguments:
        model: on any device; Fabric moves it to its own.
        data: the model is trained on the training part. The validation part, if any, selects the best epoch.
        fabric: a launched Fabric.
        display: shows the progress; silent on all processes but the first.
        origin: what else the run depends on, in words. A checkpoint of another origin is refused.

    """

    def __init__(
        self,
        model: nn.Module,
        data: DataSplits,
        recipe: Recipe,
        folder: RunFolder,
        fabric: Fabric,
        display: Display,
        *,
        origin: str = "",
    ) -> None:
        self.recipe, self.folder, self.fabric, self.display = recipe, folder, fabric, display
        self.model, self.origin = model, origin
        self.samples = {"train": len(data.train), "validation": 0 if data.validation is None else len(data.validation)}
        self.train_batches = self._batches(data, "train")
        self.validation_batches = None if data.validation is None else self._batches(data, "validation")
        self.optimizer = make_optimizer(model, recipe.optim, fused=fabric.device.type == "cuda")
        self.forward_model, self.stepper = fabric.setup(model, self.optimizer)  # wrapped by Fabric
        self.schedule = Schedule(recipe.schedule, steps_per_epoch=len(self.train_batches), epochs=recipe.epochs)
        self.progress = Progress()
        self.best_state: dict[str, torch.Tensor] | None = None
        # sum of losses, number of correct predictions, first step whose loss is not finite (or −1)
        self.sums = torch.zeros(3, dtype=torch.float64, device=fabric.device)
        self._now = torch.zeros((), dtype=torch.float64, device=fabric.device)  # number of the current step
        batches = self.train_batches
        expected = {"batch_size": batches.local_batch_size, "steps": recipe.epochs * len(batches)}
        self.engine = make_engine(recipe, fabric, model, self.optimizer, self._compute, display.say, **expected)
        self.train_batches.compiled = not isinstance(self.engine, EagerEngine)
        self._writer: Any = None
        self._resumed = False

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train to the end, from the newest checkpoint if there is one. The model then has the selected weights."""
        if not self._resumed:
            self.resume()
        self._session_began = self._saved_at = self._shown_at = time.monotonic()
        self._seconds_before = self.progress.seconds
        with stop_on_signal() as stop_asked, self.display:
            while self.progress.epoch < self.recipe.epochs:
                try:
                    self._epoch(stop_asked)
                except ArgumentError:
                    self._check_weights()  # a mask that is not finite has no size, which is an error of its layer
                    raise
        if self.best_state is not None:
            self.model.load_state_dict(self.best_state)

    def _epoch(self, stop_asked: Callable[[], str | None]) -> None:
        progress = self.progress
        self.sums.copy_(torch.tensor([progress.loss_sum, progress.right, -1.0], dtype=torch.float64))
        self.forward_model.train()
        for batch in self.train_batches.iterate(epoch=progress.epoch, start=progress.batch):
            self.step(batch)
            if self.fabric.device.type == "cpu" or time.monotonic() - self._shown_at > SHOW_SECONDS:
                self._check_progress()
            if time.monotonic() - self._saved_at > self.recipe.checkpoint_seconds:
                self._save()
            if reason := stop_asked():
                self._save()
                raise Interrupted(reason)
        self._check_progress()
        self._finish_epoch()

    def step(self, batch: Batch) -> None:
        """Train on one batch, with the learning rate of the current step."""
        progress = self.progress
        _seed(step_seed(self.recipe.seed, progress.step, self.fabric.global_rank), self.fabric.device)
        self.schedule.apply(self.optimizer, progress.step)
        self._now.fill_(progress.step)
        # gradients are averaged over processes, which may have different numbers of samples
        self.engine.step(batch, self.fabric.world_size / self.train_batches.global_size(progress.batch))
        progress.step, progress.batch = progress.step + 1, progress.batch + 1
        progress.seen += len(batch[1])

    def _compute(self, batch: Batch, sample_weight: float) -> None:
        """Run forward, backward and the optimizer, and update the sums.

        Nothing here synchronizes with the device or depends on the step number, so that it can be captured.
        """
        self.optimizer.zero_grad(set_to_none=True)
        logits = forward(self.forward_model, batch)
        smoothing = self.recipe.label_smoothing
        added = penalties(self.model, self.recipe)
        loss = _loss(logits, batch[1], smoothing, sample_weight, added, self.sums, self._now)
        self.fabric.backward(loss)
        if self.recipe.optim.clip is not None:
            # `_check_progress` finds values that are not finite; checking here would synchronize with the device
            clip = self.recipe.optim.clip
            self.fabric.clip_gradients(self.forward_model, self.stepper, max_norm=clip, error_if_nonfinite=False)
        self.stepper.step()

    def _check_progress(self) -> None:
        """Read the sums from the device and update the display. Raises an error if the loss is not finite."""
        loss_sum, right, bad_step = self.sums.tolist()
        if bad_step >= 0 or not math.isfinite(loss_sum):
            raise self.diverged("the loss", int(bad_step) if bad_step >= 0 else self.progress.step)
        progress = self.progress
        progress.loss_sum, progress.right = loss_sum, right
        progress.seconds = self._seconds_before + time.monotonic() - self._session_began
        if time.monotonic() - self._shown_at > SHOW_SECONDS:
            self._shown_at = time.monotonic()
            seen, sizes = max(progress.seen, 1), refresh_extents(self.model)
            self.display.step(progress.step, loss=loss_sum / seen, accuracy=right / seen, sizes=sizes)

    def _check_weights(self) -> None:
        """Raise an error if the last step made a parameter or a buffer infinite or NaN. Its own loss is earlier."""
        floats = {name: tensor for name, tensor in self.model.state_dict().items() if tensor.is_floating_point()}
        finite = torch.stack([tensor.isfinite().all() for tensor in floats.values()])
        if not finite.all():
            bad = next(name for name, good in zip(floats, finite.tolist(), strict=True) if not good)
            raise self.diverged(bad, self.progress.step - 1)

    def diverged(self, what: str, step: int) -> DivergedError:
        """Return the error for a run in which `what` is not finite."""
        kept = [path for path in checkpoints(self.folder.checkpoints) if checkpoint_step(path) <= step]
        last = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
        return DivergedError(
            f"{what} is not finite at step {step} (epoch {min(self.progress.epoch + 1, self.recipe.epochs)}) of "
            f"{self.recipe.model.name} on {self.recipe.data.name}; {last}. A lower optim.lr or optim.clip may help"
        )

    # --- between epochs -----------------------------------------------------------------------------------------------

    def _finish_epoch(self) -> None:
        progress = self.progress
        sums = torch.tensor([progress.loss_sum, progress.right, float(progress.seen)], dtype=torch.float64)
        sums = sums.to(self.fabric.device)
        if self.fabric.world_size > 1:
            torch.distributed.all_reduce(sums)
        loss_sum, right, seen = sums.tolist()
        score = None if self.validation_batches is None else evaluate(self.forward_model, self.validation_batches)
        progress.seconds = self._seconds_before + time.monotonic() - self._session_began
        record: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "step": progress.step,
            "lr": self.schedule.rate(progress.step - 1, self.recipe.optim.lr),
            "train_loss": loss_sum / seen,
            "train_accuracy": right / seen,
            "epoch_seconds": progress.seconds - progress.epoch_began,
            "seconds": progress.seconds,
            "sizes": {name: list(size) for name, size in refresh_extents(self.model).items()},
        }
        if score is not None:
            record |= {"validation_loss": score.loss, "validation_accuracy": score.accuracy}
            record |= {} if score.top5_accuracy is None else {"validation_top5_accuracy": score.top5_accuracy}
            self._select(score)
        if self.fabric.is_global_zero:
            self.folder.check_present()
            progress.metrics_bytes = self.folder.append_metrics(record)
            self._write_events(record)
        self.display.epoch(record)
        progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.loss_sum, progress.right, progress.seen = 0.0, 0.0, 0
        progress.epoch_began = progress.seconds
        if progress.epoch == self.recipe.epochs:
            self._save()

    def _select(self, score: Score) -> None:
        """Keep the weights of the epoch with the best accuracy, and among equals of that with the lowest loss.

        An epoch whose loss is not finite is never selected.
        """
        best = self.progress.best
        if not math.isfinite(score.loss):
            return
        if not best or (score.accuracy, -score.loss) > (best["accuracy"], -best["loss"]):
            self.progress.best = {"epoch": self.progress.epoch + 1, "accuracy": score.accuracy, "loss": score.loss}
            self.best_state = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def _write_events(self, record: dict[str, Any]) -> None:
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise MissingPackageError("training needs tensorboard", extra="train") from error
            self._writer = SummaryWriter(str(self.folder.path), purge_step=self.progress.epoch)
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, self.progress.epoch)
        for name, size in record["sizes"].items():
            self._writer.add_scalar(f"size/{name}", math.prod(size) ** (1 / len(size)), self.progress.epoch)
        self._writer.flush()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._check_progress()  # never save a model that has diverged
        self._check_weights()
        self._saved_at = time.monotonic()
        if self.fabric.is_global_zero:
            self.folder.check_present()
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "precision": self.fabric._precision.state_dict(),
                "progress": asdict(self.progress),
                "metrics": self.folder.metrics_text(self.progress.metrics_bytes),
                "best": self.best_state,
                "recipe": recipe_text(self.recipe),
                "samples": self.samples,
                "origin": self.origin,
            }
            save_checkpoint(self.folder.checkpoints, self.progress.step, state)

    def resume(self) -> dict[str, Any]:
        """Continue from the newest checkpoint, if there is one. Returns a record of it for machines.jsonl."""
        self._resumed = True
        state = newest_checkpoint(self.folder.checkpoints, self.display.say)
        if state is None:
            if self.fabric.is_global_zero:
                self.folder.restore_metrics(None, 0)
            return {}
        record = self._check_checkpoint(state)
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint in {self.folder.checkpoints} does not fit the network {self.recipe.model.name} of "
                "recipe.yaml: was the recipe changed?"
            ) from error
        self.optimizer.load_state_dict(state["optimizer"])
        self.fabric._precision.load_state_dict(state["precision"])
        self.progress = Progress(**state["progress"])
        self.best_state = state["best"]
        if not self.fabric.is_global_zero:
            # the sums in the checkpoint are those of the first process
            self.progress.loss_sum, self.progress.right, self.progress.seen = 0.0, 0.0, 0
        if self.fabric.is_global_zero:
            self.folder.restore_metrics(state, self.progress.metrics_bytes)
        self.display.say(f"resumed at step {self.progress.step} (epoch {self.progress.epoch + 1})")
        return {"resumed_at": self.progress.step, **record}

    def _check_checkpoint(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Raise an error unless this run can go on from a checkpoint. Returns what has changed, for machines.jsonl."""
        where = self.folder.checkpoints
        if "recipe" not in state:
            check_same_settings(self.optimizer, state["optimizer"], where)
            note = "the checkpoint is of an older version and does not contain its recipe"
            self.display.say(f"{note}: recipe.yaml is taken to be unchanged")
            return {"note": note}
        changed = compare_recipes(self.recipe, state["recipe"], where)
        if state["origin"] != self.origin:
            raise RunError(f"the checkpoint in {where} is of a run with {state['origin']}; now it is {self.origin}")
        if state["samples"] != self.samples:
            before, now = (
                " and ".join(f"{n:,} {part}" for part, n in s.items()) for s in (state["samples"], self.samples)
            )
            raise RunError(
                f"the data set was changed since the checkpoint in {where} was written: it had {before} samples, now "
                f"{now}. Restore the data, or start another run"
            )
        for change in changed:
            self.display.say(escape(f"changed since the last checkpoint: {change}"))
        return {"changed": changed} if changed else {}

    def _batches(self, data: DataSplits, part: str) -> DeviceBatches:
        train = part == "train"
        return DeviceBatches(
            getattr(data, part),
            self.recipe.batch_size,
            shuffle=train,
            augment=self.recipe.data.augmentation if train else None,
            device=self.fabric.device,
            dtype=torch.float64 if self.recipe.precision == "fp64" else torch.float32,
            seed=self.recipe.seed,
            world_size=self.fabric.world_size,
            rank=self.fabric.global_rank,
        )


@has_fast_version("train.loss")
def _loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    smoothing: float,
    sample_weight: float,
    penalties: torch.Tensor | float,
    sums: torch.Tensor,
    step: torch.Tensor,
) -> torch.Tensor:
    """Return Σ cross-entropy · sample_weight + penalties → scalar. Adds the batch to `sums` (see `Trainer.sums`)."""
    total = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing).sum()
    loss = total * sample_weight + penalties
    with torch.no_grad():
        right = (logits.argmax(1) == labels).sum()
        bad = torch.where(loss.isfinite() | (sums[2] >= 0), sums[2], step)
        sums.copy_(torch.stack([sums[0] + total.double(), sums[1] + right.double(), bad]))
    return loss


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators in use. `torch.manual_seed` takes longer, also if there are no other devices."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return a seed for a step. Neighboring steps get unrelated seeds (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB + 1) % 2**64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63
