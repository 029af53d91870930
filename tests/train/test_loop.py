"""Training runs: their files, how they are resumed, and what stops them."""

import io
import json
import math
import shutil
import signal
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from flexconv import data, from_pretrained, train
from flexconv.train import CheckpointError, DivergedError, Interrupted, RunError, RunFolder, Score, loop, stopping
from flexconv.train.checkpoint import checkpoints, save_checkpoint

from .tiny import tiny_recipe


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return RunFolder(folder), train.train(tiny_recipe(), folder)


def weights(folder):
    return from_pretrained(RunFolder(folder).weights).state_dict()


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_run_writes_all_files(finished):
    folder, results = finished
    records = folder.read_metrics()
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert records[0].keys() >= {"train_loss", "train_accuracy", "validation_accuracy", "sizes", "lr", "seconds"}
    assert folder.read_results() == json.loads(json.dumps(results))
    assert results["test_count"] == 360
    assert results["selected"] == "validation"
    best = max(records, key=lambda record: (record["validation_accuracy"], -record["validation_loss"]))
    assert results["best"] == {
        "epoch": best["epoch"],
        "accuracy": best["validation_accuracy"],
        "loss": best["validation_loss"],
    }
    assert folder.read_recipe() == tiny_recipe()
    assert list(folder.path.glob("events.*"))
    assert {path.name for path in folder.plots.iterdir()} == {"curves.png", "sizes.png", "masks.png", "kernel.png"}


def test_saved_network_is_the_tested_one(finished):
    folder, results = finished
    model = from_pretrained(folder.weights)
    splits = train.load_data(tiny_recipe())
    batches = train.run.DeviceBatches(splits.test, 100)
    assert train.evaluate(model, batches).accuracy == results["test_accuracy"]


def test_weights_are_reproducible_and_depend_on_the_seed(finished, tmp_path):
    train.train(tiny_recipe(), tmp_path / "again")
    assert same(weights(tmp_path / "again"), weights(finished[0].path))
    train.train(tiny_recipe(seed=6), tmp_path / "other")
    assert not same(weights(tmp_path / "other"), weights(finished[0].path))


class StopAt:
    """Calls `how` after a number of training steps."""

    def __init__(self, monkeypatch, steps, how):
        step = loop.Trainer.step

        def counted(trainer, batch):
            step(trainer, batch)
            if trainer.progress.step == steps:
                how()

        monkeypatch.setattr(loop.Trainer, "step", counted)


@pytest.mark.parametrize(
    ("number", "steps"),
    [*((signal.SIGINT, steps) for steps in (1, 6, 17)), *((signal.SIGTERM, steps) for steps in (5, 6, 7))],
)
def test_resumed_run_ends_with_same_weights(finished, tmp_path, monkeypatch, number, steps):
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        StopAt(patch, steps, lambda: signal.raise_signal(number))
        with pytest.raises(Interrupted, match=number.name):
            train.train(tiny_recipe(), tmp_path)
    assert not RunFolder(tmp_path).finished
    assert checkpoints(tmp_path / "checkpoints")[-1].name == f"step-{steps:09d}.ckpt"
    train.resume(tmp_path)
    assert same(weights(tmp_path), weights(finished[0].path))
    keys = ("epoch", "step", "train_loss", "train_accuracy", "validation_loss", "sizes")
    ours, theirs = ([{k: r[k] for k in keys} for r in f.read_metrics()] for f in (RunFolder(tmp_path), finished[0]))
    assert ours == theirs
    assert signal.getsignal(signal.SIGINT) is before


def test_resumes_with_another_engine(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        StopAt(patch, 3, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            train.train(tiny_recipe(epochs=1, engine="graph"), tmp_path)
    with pytest.raises(ValueError, match="did you mean 'eager'"):
        train.resume(tmp_path, engine="eagr")
    assert train.resume(tmp_path, engine="eager")["steps"] == 6
    assert RunFolder(tmp_path).read_recipe().engine == "eager"


def test_two_signals_in_quick_succession_count_as_one(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        StopAt(patch, 3, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
        with pytest.raises(Interrupted):
            train.train(tiny_recipe(), tmp_path)
    assert checkpoints(tmp_path / "checkpoints")[-1].name == "step-000000003.ckpt"


def test_second_signal_interrupts_at_once(monkeypatch):
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", -1.0)
    with stopping.stop_on_signal() as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked() == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_resumes_from_checkpoint_before_a_damaged_one(finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        StopAt(patch, 9, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            train.train(tiny_recipe(checkpoint_seconds=0.0), tmp_path)
    _, new = checkpoints(tmp_path / "checkpoints")
    new.write_bytes(new.read_bytes()[:-1])
    machines = RunFolder(tmp_path).machines
    machines.write_text(machines.read_text().replace("cpu", "another"))
    said = []
    monkeypatch.setattr(loop.Display, "say", lambda _, text: said.append(text))
    results = train.resume(tmp_path)
    assert results["device"] == "another, 1 threads, then cpu, 1 threads"
    assert any(new.name in text and "skipped" in text for text in said)
    assert any("resumed at step 8" in text for text in said)
    assert same(weights(tmp_path), weights(finished[0].path))


def test_does_not_restart_if_all_checkpoints_are_damaged(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        StopAt(patch, 3, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            train.train(tiny_recipe(), tmp_path)
    for path in checkpoints(tmp_path / "checkpoints"):
        path.write_bytes(b"?")
    with pytest.raises(CheckpointError, match=r"no checkpoint.*intact.*step-000000003"):
        train.resume(tmp_path)


@pytest.mark.parametrize("kept", [30, -2])
def test_resumes_with_an_incomplete_line_in_a_log(finished, tmp_path, monkeypatch, kept):
    with monkeypatch.context() as patch:
        StopAt(patch, 9, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            train.train(tiny_recipe(), tmp_path)
    folder = RunFolder(tmp_path)
    for path in (folder.machines, folder.metrics):
        path.write_bytes(path.read_bytes()[:kept])
    train.resume(tmp_path)
    assert same(weights(tmp_path), weights(finished[0].path))
    assert [record["epoch"] for record in folder.read_metrics()] == [1, 2, 3]  # from the checkpoint


def test_rejects_checkpoint_of_another_network(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        StopAt(patch, 3, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            train.train(tiny_recipe(), tmp_path)
    RunFolder(tmp_path).write_recipe(tiny_recipe(model={"name": "flexnet3", "widths": [4]}))
    forget_recipe(tmp_path)
    with pytest.raises(CheckpointError, match=r"^.*checkpoints does not fit.*flexnet3.*$"):
        train.resume(tmp_path)


def forget_recipe(run):
    """Make the newest checkpoint one of an older version, which did not save the recipe."""
    path = checkpoints(run / "checkpoints")[-1]
    state = train.load_checkpoint(path)
    for name in ("recipe", "samples", "origin"):
        del state[name]
    save_checkpoint(path.parent, state["progress"]["step"], state)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that was stopped at step 7, in the second epoch."""
    folder = tmp_path_factory.mktemp("runs") / "part"
    with pytest.MonkeyPatch.context() as patch:
        StopAt(patch, 7, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            train.train(tiny_recipe(), folder)
    return folder


EDITS = [
    ("optim.weight_decay: 0.0 → 0.5", {"optim": {"lr": 0.02, "kernel_norm": 1e-4, "weight_decay": 0.5}}),
    ("optim.name: adam → sgd", {"optim": {"name": "sgd", "lr": 0.02, "kernel_norm": 1e-4}}),
    ("batch_size: 200 → 100", {"batch_size": 100}),
    ("seed: 5 → 6", {"seed": 6}),
    ("epochs: 3 → 4", {"epochs": 4}),
    ("data.validation: 0.2 → 0.4", {"data": {"name": "digits", "validation": 0.4, "augment": True}}),
    ("data.resolution: None → 12", {"data": {"name": "digits", "validation": 0.2, "augment": True, "resolution": 12}}),
    ("alias.weight: 0.1 → 0.2", {"alias": {"weight": 0.2}}),
    ("alias.weight: 0.1 → .none", {"alias": None}),
]


@pytest.mark.parametrize(("text", "change"), EDITS, ids=[text for text, _ in EDITS])
def test_rejects_edited_recipe(interrupted, tmp_path, text, change):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    folder = RunFolder(tmp_path)
    folder.write_recipe(tiny_recipe(**change))
    with pytest.raises(RunError, match=rf"changed.*{text}"):
        train.resume(tmp_path)
    assert len(folder.read_machines()) == 1
    folder.write_recipe(tiny_recipe())  # as the message advises
    assert train.resume(tmp_path)["steps"] == 18


def test_reports_and_records_permitted_changes(finished, interrupted, tmp_path, monkeypatch):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    folder = RunFolder(tmp_path)
    folder.write_recipe(tiny_recipe(checkpoint_seconds=5.0))
    said = []
    monkeypatch.setattr(loop.Display, "say", lambda _, text: said.append(text))
    train.resume(tmp_path, engine="eager")
    assert any("checkpoint_seconds: 60.0 → 5.0" in text for text in said)
    started, resumed = folder.read_machines()
    assert "changed" not in started
    assert resumed["resumed_at"] == 7
    assert resumed["changed"] == ["engine: auto → eager", "checkpoint_seconds: 60.0 → 5.0"]
    assert same(weights(tmp_path), weights(finished[0].path))


def test_rejects_changed_data(interrupted, tmp_path, monkeypatch):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    splits = data.load("digits", validation=0.2)
    fewer = replace(splits, train=splits.train.rows(torch.arange(1000)))
    monkeypatch.setattr(train.run, "load_data", lambda _: fewer)
    with pytest.raises(RunError, match=r"data set was changed.*1,149 train.*1,000 train"):
        train.resume(tmp_path)


def test_old_checkpoint_without_recipe_is_accepted_with_a_note(finished, interrupted, tmp_path, monkeypatch):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    forget_recipe(tmp_path)
    said = []
    monkeypatch.setattr(loop.Display, "say", lambda _, text: said.append(text))
    train.resume(tmp_path)
    assert any("does not contain its recipe" in text for text in said)
    assert "older version" in RunFolder(tmp_path).read_machines()[-1]["note"]
    assert same(weights(tmp_path), weights(finished[0].path))


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("momentum None → 0.9", {"optim": {"name": "sgd", "lr": 0.02}}),
        ("weight_decay 0.0 → 0.5", {"optim": {"lr": 0.02, "weight_decay": 0.5}}),
        ("lr 0.02 → 0.04", {"optim": {"lr": 0.04}}),
    ],
)
def test_old_checkpoint_needs_the_same_optimizer(interrupted, tmp_path, text, change):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    forget_recipe(tmp_path)
    RunFolder(tmp_path).write_recipe(tiny_recipe(**change))
    with pytest.raises(RunError, match=rf"optimizer.*{text}"):
        train.resume(tmp_path)


def test_rejects_damaged_recipe_or_results(tmp_path):
    folder = RunFolder(tmp_path)
    for content in (b"a: [", b"", b"\xff", b"kind: classify"):
        (tmp_path / "recipe.yaml").write_bytes(content)
        with pytest.raises(RunError, match=r"^.*recipe\.yaml cannot be used: .*$"):
            folder.read_recipe()
    folder.results.write_text("{")
    with pytest.raises(RunError, match=r"results\.json is damaged"):
        folder.read_results()


def test_stops_at_the_step_whose_loss_is_not_finite(tmp_path, monkeypatch):
    cross_entropy, calls = loop.F.cross_entropy, []

    def sometimes(*args, **kwargs):
        calls.append(1)
        return cross_entropy(*args, **kwargs) * (float("nan") if len(calls) == 5 else 1.0)

    monkeypatch.setattr(loop.F, "cross_entropy", sometimes)
    with pytest.raises(DivergedError, match=r"step 4 .*flexnet3 on digits.*step-000000004\.ckpt"):
        train.train(tiny_recipe(checkpoint_seconds=0.0), tmp_path)
    state = train.load_checkpoint(checkpoints(tmp_path / "checkpoints")[-1])
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_divergence_in_the_last_step_is_an_error(tmp_path):
    changes = {
        "data": {"name": "digits"},
        "optim": {"lr": 1e6},
        "schedule": {"name": "constant", "warmup_epochs": 0},
        "alias": None,
        "epochs": 1,
        "batch_size": 5000,
    }
    with pytest.raises(DivergedError, match=r"test loss .*step 0 \(epoch 1\).*no checkpoint yet"):
        train.train(tiny_recipe(**changes), tmp_path)
    assert not RunFolder(tmp_path).finished
    assert not RunFolder(tmp_path).weights.exists()


@pytest.mark.parametrize("where", ["in an epoch", "at the end of an epoch"])
def test_mask_that_is_not_finite_is_a_divergence(where, tmp_path, monkeypatch):
    step, spoiled = loop.Trainer.step, {"in an epoch": 4, "at the end of an epoch": 6}[where]

    def spoil(trainer, batch):
        step(trainer, batch)
        if trainer.progress.step == spoiled:
            for parameter in trainer.model.stem.mask.parameters():
                parameter.data.fill_(math.nan)

    monkeypatch.setattr(loop.Trainer, "step", spoil)
    expected = rf"stem\.mask\.\w+ is not finite at step {spoiled - 1} \(epoch 1\) of .* A lower optim\.lr"
    with pytest.raises(DivergedError, match=expected):
        train.train(tiny_recipe(epochs=2), tmp_path)


def test_weights_that_are_not_finite_after_the_last_step_are_not_saved(tmp_path, monkeypatch):
    step = loop.Trainer.step

    def spoil(trainer, batch):
        step(trainer, batch)
        if trainer.progress.step == 6:
            trainer.model.head.bias.data[2] = math.inf

    monkeypatch.setattr(loop.Trainer, "step", spoil)
    with pytest.raises(DivergedError, match=r"head\.bias is not finite at step 5 \(epoch 1\).*no checkpoint yet"):
        train.train(tiny_recipe(epochs=1), tmp_path)
    assert not checkpoints(tmp_path / "checkpoints")


def test_epoch_with_infinite_validation_loss_is_not_selected(tmp_path, monkeypatch):
    scores = iter([Score(math.nan, 0.9, 10), Score(1.0, 0.3, 10), Score(math.inf, 0.8, 10)])
    monkeypatch.setattr(loop, "evaluate", lambda *_: next(scores))
    assert train.train(tiny_recipe(), tmp_path, plots=False)["best"] == {"epoch": 2, "accuracy": 0.3, "loss": 1.0}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("compiled", [False, True])
def test_loss_updates_the_reported_sums(smoothing, compiled):
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4, requires_grad=True), torch.tensor([0, 1, 2, 3, 0, 1])
    sums = torch.tensor([1.5, 2.0, -1.0], dtype=torch.float64)
    function = loop._loss.__wrapped__
    if compiled:
        function = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)
    penalty = torch.tensor(0.25, requires_grad=True)
    step = torch.tensor(7.0, dtype=torch.float64)
    loss = function(logits, labels, smoothing, 0.5, penalty, sums, step)
    losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(loss, losses.sum() / 2 + 0.25)
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], torch.autograd.grad(losses.sum() / 2, logits)[0])
    right = (logits.argmax(1) == labels).sum().item()
    assert sums.tolist() == pytest.approx([1.5 + losses.sum().item(), 2 + right, -1])
    for number in (7, 8):  # the first bad step is reported
        function(logits, labels, smoothing, 0.5, penalty * math.inf, sums, step.fill_(number))
    assert sums[2] == 7


def test_rejects_second_process_in_a_folder(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(RunError, match="another process is training"):
        train.train(tiny_recipe(), tmp_path)


def test_removes_what_killed_processes_left(interrupted, tmp_path):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    leftovers = [
        "checkpoints/.step-000000008.ckpt.part",
        f".results.json.{'0' * 32}.tmp",
        f"weights/.config.json.{'a' * 32}.tmp",
        f"source/weights/.config.json.{'b' * 32}.tmp",
        "target/checkpoints/.step-000000008.ckpt.part",
    ]
    others = ["notes.tmp", ".mine.tmp", "checkpoints/mine.part"]
    for name in (*leftovers, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"?")
    folder = RunFolder(tmp_path)
    with folder.locked():
        (tmp_path / leftovers[0]).write_bytes(b"being written")
        with pytest.raises(RunError, match="another process"):
            train.resume(tmp_path)
        assert (tmp_path / leftovers[0]).exists()
    train.resume(tmp_path)
    assert not any((tmp_path / name).exists() for name in leftovers)
    assert all((tmp_path / name).exists() for name in others)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_run_whose_folder_is_deleted_ends_with_an_error(tmp_path, monkeypatch, seconds):
    StopAt(monkeypatch, 3, lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(RunError, match=r"run/recipe\.yaml was deleted"):
        train.train(tiny_recipe(checkpoint_seconds=seconds), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_does_not_overwrite_a_run(finished):
    with pytest.raises(RunError, match="already contains a run"):
        train.train(tiny_recipe(), finished[0].path)


def test_resuming_a_finished_run_changes_nothing(finished):
    before = weights(finished[0].path)
    assert train.resume(finished[0].path)["test_accuracy"] == finished[1]["test_accuracy"]
    assert same(weights(finished[0].path), before)


def test_rejects_resuming_a_folder_without_run(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        train.resume(tmp_path)


def test_trains_in_a_thread(tmp_path):
    done = []
    thread = threading.Thread(target=lambda: done.append(train.train(tiny_recipe(epochs=1), tmp_path)))
    thread.start()
    thread.join()
    assert done[0]["steps"] == 6


@pytest.mark.parametrize(
    "change", [{"precision": "bf16"}, {"optim": {"clip": 0.1, "weight_decay": 0.1}}, {"deterministic": True}]
)
def test_trains_with_other_settings(tmp_path, change):
    results = train.train(tiny_recipe(epochs=2, **change), tmp_path)
    records = RunFolder(tmp_path).read_metrics()
    assert records[1]["train_loss"] < records[0]["train_loss"]
    assert results["selected"] == "validation"


def test_network_trained_in_bf16_is_tested_in_float32(tmp_path):
    results = train.train(tiny_recipe(epochs=1, precision="bf16"), tmp_path)
    model = from_pretrained(RunFolder(tmp_path).weights)
    batches = train.run.DeviceBatches(train.load_data(tiny_recipe()).test, 100)
    plain = train.evaluate(model, batches)
    with torch.autocast("cpu", torch.bfloat16):
        assert train.evaluate_exactly(model, batches) == plain != train.evaluate(model, batches)
    assert results["test_accuracy"] == plain.accuracy
    assert results["test_loss"] == pytest.approx(plain.loss, rel=1e-6)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_evaluates_without_tf32_and_restores_the_setting(finished, request, precision):
    backends = torch.backends.cudnn.conv, torch.backends.cuda.matmul
    for backend in backends:
        request.addfinalizer(partial(setattr, backend, "fp32_precision", backend.fp32_precision))
        backend.fp32_precision = precision
    seen = []
    model = from_pretrained(finished[0].weights)
    model.register_forward_hook(lambda *_: seen.append([backend.fp32_precision for backend in backends]))
    batches = train.run.DeviceBatches(train.load_data(tiny_recipe()).test, 360)
    assert train.evaluate_exactly(model, batches).accuracy == finished[1]["test_accuracy"]
    assert seen == [["ieee", "ieee"]]
    assert [backend.fp32_precision for backend in backends] == [precision] * 2


def test_selects_lowest_loss_among_equal_accuracies(tmp_path, monkeypatch):
    recipe = tiny_recipe(epochs=4)
    losses = iter([0.3, 0.1, 0.2, 0.1])
    monkeypatch.setattr(loop, "evaluate", lambda *_, **__: Score(accuracy=0.5, loss=next(losses), count=10))
    results = train.train(recipe, tmp_path, device="cpu", plots=False)
    assert results["best"] == {"epoch": 2, "accuracy": 0.5, "loss": 0.1}


def test_without_validation_keeps_last_epoch_and_tests_once(tmp_path, monkeypatch):
    seen = []
    for module, name in ((loop, "evaluate"), (train.run, "evaluate_exactly")):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, function=function: seen.append(args) or function(*args))
    results = train.train(tiny_recipe(data={"name": "digits"}, epochs=2), tmp_path)
    assert results["selected"] == "last"
    assert len(seen) == 1


def test_test_part_is_not_read_if_the_recipe_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(train.run, "evaluate_exactly", None)
    data = {"name": "digits", "validation": 0.2, "test": False}
    console = Console(file=io.StringIO(), width=200)
    results = train.train(tiny_recipe(data=data, epochs=1), tmp_path, device="cpu", console=console)
    assert "test_accuracy" not in results
    assert f"best validation accuracy {100 * results['best']['accuracy']:.2f} %" in console.file.getvalue()
    with pytest.raises(ValueError, match=r"data\.test must be true.*'paper'"):
        tiny_recipe(data={"name": "digits", "test": False, "protocol": "paper"})
    with pytest.raises(ValueError, match=r"data\.test must be true in a cross-resolution"):
        tiny_recipe(kind="cross-resolution", source=8, target=16, data={"name": "digits", "test": False})


def test_saved_network_knows_its_inputs(finished):
    data = train.load_data(tiny_recipe())
    model = from_pretrained(finished[0].weights)
    assert model.inputs.size == data.test.sample_shape[1:]
    assert model.inputs.classes == data.class_names
    inputs, _, _ = next(iter(train.run.DeviceBatches(data.test, 20)))
    torch.testing.assert_close(model.inputs(data.test.inputs[:20]), inputs)


def test_invalid_network_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"widths\[0\] must be at least 1; got -4"):
        train.train(tiny_recipe(model={"name": "flexnet3", "widths": [-4]}), tmp_path / "run")
    for size in ({"num_classes": 3}, {"num_classes": 12}, {"in_channels": 2}):
        with pytest.raises(ValueError, match="do not fit digits, which has 1 and 10: leave them out"):
            train.train(tiny_recipe(model={"name": "flexnet3", "widths": [4], **size}), tmp_path / "run")
    with pytest.raises(ValueError, match=r"model\.image_size 32 does not fit digits.* 8×8: leave it out"):
        train.train(tiny_recipe(model={"name": "flexnet3", "widths": [4], "image_size": 32}), tmp_path / "run")
    with pytest.raises(
        TypeError, match="'flextcn2' is for series and takes length; got image_size, which is for images"
    ):
        train.train(tiny_recipe(model={"name": "flextcn2"}), tmp_path / "run")
    for name in ("flextcn2", "sepflexnet_tiny"):
        series = {"model": {"name": name, "readout": "every"}, "data": {"name": "sdigits"}}
        with pytest.raises(ValueError, match=r"readout='every'.*model\.readout"):
            train.train(tiny_recipe(**series), tmp_path / "run")
    sines = {"name": "flexnet3", "widths": [4], "generator": "siren"}
    with pytest.raises(ValueError, match="SIREN"):  # there is no formula for its spectrum
        train.train(tiny_recipe(model=sines), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_cross_resolution_resumes_between_its_two_runs(tmp_path):
    recipe = train.build_recipe(
        {
            "kind": "cross-resolution",
            "source": 8,
            "target": 16,
            "finetune_epochs": 1,
            "model": {"name": "flexnet3", "widths": [3], "generator_options": {"hidden": 4}},
            "data": {"name": "digits"},
            "epochs": 2,
            "batch_size": 300,
        }
    )
    results = train.train(recipe, tmp_path / "run")
    accuracy = results["source"]["test_accuracy"]
    assert results["change_out_of_the_box"] == results["out_of_the_box"]["accuracy"] - accuracy
    assert results["change_norms_measured"] == results["norms_measured"]["accuracy"] - accuracy
    target = from_pretrained(tmp_path / "run" / "target" / "weights")
    assert target.stem.kernel_size == (17, 17)
    assert RunFolder(tmp_path / "run" / "target").read_recipe().data.resolution == 16
    # killed after the source stage: continues with the target stage, but not with another recipe
    (tmp_path / "run" / "results.json").unlink()
    (tmp_path / "run" / "target" / "results.json").unlink()
    for change, text in (({"epochs": 3}, "epochs: 2 → 3"), ({"crop": "hard"}, "crop=taper; now .*crop=hard")):
        RunFolder(tmp_path / "run").write_recipe(replace(recipe, **change))
        with pytest.raises(RunError, match=text):
            train.resume(tmp_path / "run")
    RunFolder(tmp_path / "run").write_recipe(recipe)
    again = train.resume(tmp_path / "run")
    assert again["source"]["test_accuracy"] == results["source"]["test_accuracy"]
    assert again["target"]["test_accuracy"] == results["target"]["test_accuracy"]
    # only the weights of the source stage are left, as in a repository: it is not trained again
    (tmp_path / "run" / "results.json").unlink()
    shutil.rmtree(tmp_path / "run" / "source" / "checkpoints")
    epochs = (tmp_path / "run" / "source" / "metrics.jsonl").read_text()
    assert train.resume(tmp_path / "run") == again
    assert (tmp_path / "run" / "source" / "metrics.jsonl").read_text() == epochs
    assert not (tmp_path / "run" / "source" / "checkpoints").exists()


def test_cross_resolution_without_batch_norm_does_not_recalibrate(tmp_path):
    recipe = train.build_recipe(
        {
            "kind": "cross-resolution",
            "source": 8,
            "target": 12,
            "finetune_epochs": 0,
            "model": {"name": "flexnet3", "widths": [3], "norm": "layer", "generator_options": {"hidden": 4}},
            "data": {"name": "digits"},
            "epochs": 1,
            "batch_size": 400,
        }
    )
    results = train.train(recipe, tmp_path / "run", plots=False)
    assert "out_of_the_box" in results
    assert "norms_measured" not in results


@pytest.mark.parametrize("classes", [5, 10])
def test_evaluation_counts_classes_among_the_five_largest_logits(classes):
    logits, labels = torch.randn(37, classes), torch.arange(37) % classes
    batches = train.run.DeviceBatches(data.Split(logits[:, :, None], labels), 8)
    score = train.evaluate(torch.nn.Flatten(), batches)
    ranks = (logits > logits.gather(1, labels[:, None])).sum(1)
    assert score.accuracy == pytest.approx((ranks == 0).double().mean().item())
    expected = None if classes == 5 else pytest.approx((ranks < 5).double().mean().item())
    assert score.top5_accuracy == expected
