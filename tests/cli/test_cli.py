"""The `flexconv` command: what it prints to stdout and stderr, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flexconv import __version__, cli, create_model, errors, from_pretrained, list_models, save_pretrained
from flexconv.cli._resample import ResampledSeries
from flexconv.data import DamagedDataError, DeviceBatches, MissingDataError
from flexconv.data import load as load_data
from flexconv.summary import summarize
from flexconv.train import RunFolder, list_recipes, load_recipe, loop
from flexconv.train.fit_group import FitGroup

TINY = """
about: a network of one block
model: {name: flexnet3, widths: [3], generator_options: {hidden: 4}}
data: {name: digits, validation: 0.2}
epochs: 2
batch_size: 300
variants:
  bf16: {precision: bf16}
  fp64: {precision: fp64, epochs: 1}
"""
CROSS = """
kind: cross-resolution
model: {name: flexnet3, widths: [3], generator_options: {hidden: 4}}
data: {name: digits}
epochs: 1
batch_size: 400
source: 8
target: 12
finetune_epochs: 1
"""
SERIES = """
model: {name: flextcn2, widths: [3], generator_options: {hidden: 4}}
data: {name: sdigits}
epochs: 1
batch_size: 500
"""
FIT = """
kind: fit
model: {name: magnet, hidden: 4}
target: gabor
target_options: {size: 9, frequencies: [2.0]}
steps: 3
"""


class Outcome:
    def __init__(self, code, captured):
        self.code, self.out, self.err = code, captured.out, captured.err


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Run the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEXCONV_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("flexconv.train.run.draw_plots", lambda *_: None)  # plots are the slowest part

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return Outcome(code, capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Finished run folders "tiny", "cross", "series" and "fit", which tests read but do not change."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        for name, text in (("tiny", TINY), ("cross", CROSS), ("series", SERIES), ("fit", FIT)):
            (folder / f"{name}.yaml").write_text(text)
            kind = "fit" if name == "fit" else "train"
            assert cli.run([kind, f"{folder}/{name}.yaml", "--out", f"{folder}/{name}", "--device", "cpu"]) == 0
            patch.setattr("flexconv.train.run.draw_plots", lambda *_: None)  # one run with plots is enough
    return folder


def assert_refused(outcome, *patterns, code=2):
    """Assert that there is one line on stderr, which matches all of `patterns`."""
    assert outcome.code == code, outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err
    for pattern in patterns:
        assert re.search(pattern, outcome.err), outcome.err


# --- help and names ---------------------------------------------------------------------------------------------------

COMMANDS = (
    *("train", "eval", "predict", "resample", "inspect", "explore", "export", "models", "recipes", "fit", "bench"),
    *("data ls", "data show", "data fetch"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_subcommand_has_examples(call, command):
    shown = call(*command.split(), "--help")
    assert shown.code == 0
    assert shown.err == ""
    examples = re.findall(r"^ +flexconv (.+)$", shown.out, re.MULTILINE)
    assert examples
    assert all(example.startswith(command) for example in examples)
    assert all(len(line) <= 80 for line in shown.out.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_options_do_not_take_their_names_from_metavars(call, command):
    """typer 0.27.0 turns device: Option(metavar="DEVICE") into --DEVICE, unless the option has an explicit name."""
    shown = call(*command.split(), "--help").out
    same = {
        flag
        for flag, metavar in re.findall(r"^ +--([\w-]+) ([A-Z]+)\b", shown, re.MULTILINE)
        if flag == metavar.lower()
    }
    source = "".join(file.read_text() for file in Path(cli.__file__).parent.glob("*.py"))
    assert not [flag for flag in same if f'"--{flag}"' not in source]


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_command_without_arguments_lists_the_subcommands(call, arguments):
    shown = call(*arguments)
    assert shown.code == 0
    assert re.findall(r"^  (\w+) ", shown.out.partition("Commands:")[2], re.MULTILINE) == [
        *(
            "train",
            "eval",
            "predict",
            "resample",
            "inspect",
            "explore",
            "export",
            "models",
            "recipes",
            "fit",
            "bench",
            "data",
        )
    ]
    assert "..." not in shown.out.partition("Commands:")[2]


@pytest.mark.parametrize("arguments", [("paper",), ("paper", "table3", "--run"), ("ship", "runs/a", "--name", "b")])
def test_removed_commands_say_where_they_moved(call, arguments):
    assert_refused(call(*arguments), "python -m reproduction")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_arguments_without_their_types(call, command):
    shown = call(*command.split(), "--help").out
    assert not re.search(r"<\w+>|[{}]", shown), shown
    assert "[[" not in shown, shown  # a name that has the brackets of an optional argument twice


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("train flexnet7-cifar1", ["flexnet7-cifar10"]),
        ("eval flexnet3", ["flexnet3-digits"]),
        ("mod", ["models"]),
        ("data fe", ["fetch"]),
        ("train digits --device cu", ["cuda"]),
        ("train digits --res", ["--resume"]),
    ],
)
def test_shell_completes_names(tmp_path, words, offered):
    """As bash asks for completions, with the script that `flexconv --show-completion bash` prints."""
    typed = ["flexconv", *words.split()]
    asked = {
        "_FLEXCONV_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(typed),
        "COMP_CWORD": str(len(typed) - 1),
    }
    command = [sys.executable, "-m", "flexconv"]
    shown = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **asked}, check=False)
    assert shown.stdout.split() == offered, shown.stderr


def test_completion_script_is_shown(call, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # tests may run outside of a shell
    shown = call("--show-completion", "bash")
    assert shown.code == 0, shown.err
    assert "_FLEXCONV_COMPLETE=complete_bash" in shown.out


def test_models_lists_networks_with_their_accuracy(call):
    shown = call("models")
    assert shown.code == 0, shown.err
    lines = {line.split()[0]: line.split() for line in shown.out.splitlines() if line}
    assert lines["flexnet3-digits"][1:5] == ["digits", "16×16", "98.61", "%"]
    assert "flextcn6," in lines["models:"]


def test_models_as_json(call):
    listed = json.loads(call("models", "--json").out)
    networks = {each["name"]: each for each in listed["pretrained"]}
    digits = networks["flexnet3-digits"]
    assert digits["installed"]
    assert digits["data"] == "digits"
    assert digits["classes"] == [str(digit) for digit in range(10)]
    assert digits["parameters"] == sum(p.numel() for p in from_pretrained("flexnet3-digits").parameters())
    assert 0.98 < digits["test_accuracy"] < 1
    assert listed["models"] == list_models()


def test_models_names_networks_that_are_not_installed(call, monkeypatch):
    monkeypatch.setattr("flexconv.models._locate.CHECKOUT", Path("nowhere"))
    monkeypatch.setattr("flexconv.models._locate.importlib.util.find_spec", lambda _: None)
    shown = call("models").out
    assert re.search(r"^flexnet7-cifar10 +not installed$", shown, re.MULTILINE)
    assert "pip install ./weights" in shown
    networks = json.loads(call("models", "--json").out)["pretrained"]
    assert [each["name"] for each in networks if each["installed"]] == ["flexnet3-digits"]


def test_version(call):
    assert call("--version").out == f"flexconv {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("trian", "digits"), "trian.*'train'"),
        (("data", "lss"), "lss.*'ls'"),
        (("train", "digits", "--resum", "x"), "--resum.*--resume"),
        (("train", "digits", "--epochs", "3"), "--epochs.*--set epochs=3 "),
        (("train", "digits", "--batch-size=64"), "--batch-size.*--set batch_size=64 "),
        (("train", "digits", "--lr", "0.1"), "--lr.*--set optim.lr=0.1 "),
        (("train", "digits", "--optim.lr", "0.1"), "--set optim.lr=0.1 "),
        (("train", "digits", "--warmup-epochs"), "--set schedule.warmup_epochs=VALUE "),
        (("train", "digits", "--generator", "siren"), "--set model.generator=siren "),
        (("train", "digits", "--epoch", "3"), "--set epochs=3 "),
        (("train", "digits", "--devise", "cpu"), "No such option: --devise .*--device"),
        (("train", "digits", "--name", "x"), "No such option: --name"),  # of the model or of the data?
        (("fit", "fit-gabor", "--lr", "0.1"), "--set lr=0.1 "),
        (("recipes", "digits", "--seed", "1"), "--set seed=1 "),
        (("eval", "flexnet3-digits", "--epochs", "3"), "No such option: --epochs "),
        (("train", "digts"), "'digts'.*'digits'"),
        (("train", "flexnet7-cifar10/gabr"), "'gabr'.*'gabor'"),
        (("train", "digits", "--set", "optim.lrr=1"), "'lrr'.*'lr'"),
        (("train", "digits", "--set", "epochs"), "key=value.*'epochs'"),
        (("train", "digits", "--set", "epochs=ten"), "epochs must be of type int.*'ten'"),
        (("train", "digits", "--device", "cpuu"), "'cpuu'.*'cpu'"),
        (("train", "digits", "--set", "model.name=flexnet33"), "'flexnet33'.*'flexnet3'"),
        (("train", "digits", "--set", "data.name=digit"), "'digit'.*'digits'"),
        (("train", "mine.yaml"), "no recipe file 'mine.yaml'"),
        (("train",), "give a recipe, or a run folder"),
        (("train", "digits", "--resume", "x"), "leave out the recipe"),
        (("train", "--resume", "x", "--set", "epochs=2"), "keeps its recipe.*engine=NAME is allowed"),
        (("train", "--resume", "x", "--set", "engine=eager", "--set", "epochs=2"), "keeps its recipe"),
        (("train", "--resume", "nothing"), "nothing"),
        (("train", "fit-gabor"), "flexconv fit fit-gabor"),
        (("fit", "digits"), "flexconv train digits"),
        (("fit", "fit-gabr"), "'fit-gabr'.*'fit-gabor'"),
        (("recipes", "digts"), "'digits'"),
        (("recipes", "--set", "epochs=2"), "give its name"),
        (("data", "ls", "cifar"), "'cifar'.*'cifar10'"),
        (("data", "fetch", "cifar"), "'cifar'.*'cifar10'"),
        (("eval", "nothing"), "nothing"),
        (("eval",), "MODEL"),
        (("inspect", "nothing"), "nothing"),
        (("resample", "nothing", "--to", "16"), "nothing"),
        (("resample", "nothing"), "--to"),
    ],
)
def test_wrong_argument_is_named_with_the_nearest_right_one(call, arguments, pattern):
    assert_refused(call(*arguments), pattern)


def test_similar_folder_is_suggested(call, tmp_path):
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    assert_refused(call("eval", "runs/digist"), "did you mean runs/digits")
    assert_refused(call("train", "--resume", "runs/digist"), "did you mean runs/digits")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_cuda_without_gpu_is_an_error(call):
    assert_refused(call("train", "digits", "--device", "cuda"), "no GPU")


def test_missing_package_is_one_line(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    assert_refused(call("train", "digits"), r"needs lightning_fabric.*\[train\]", code=1)


def test_traceback_variable_raises_expected_errors(call, monkeypatch):
    monkeypatch.setenv("FLEXCONV_TRACEBACK", "1")
    with pytest.raises(ValueError, match="digts"):
        call("train", "digts")


@pytest.mark.parametrize("error", [KeyError, ValueError, TypeError, RuntimeError, ImportError, ZeroDivisionError])
def test_bug_shows_its_traceback_and_asks_for_a_report(call, monkeypatch, error):
    def broken():
        raise error("a bug of ours")

    monkeypatch.setattr("flexconv.train.list_recipes", broken)
    failed = call("recipes")
    assert failed.code == 1
    assert failed.out == ""
    lines = failed.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any(line.strip() == 'raise error("a bug of ours")' for line in lines)
    assert lines[-2].startswith(f"{error.__name__}: ")
    assert "bug" in lines[-1]
    assert "report" in lines[-1]


def test_traceback_variable_raises_bugs_too(call, monkeypatch):
    monkeypatch.setenv("FLEXCONV_TRACEBACK", "1")
    monkeypatch.setattr("flexconv.train.list_recipes", lambda: {}["bug"])
    with pytest.raises(KeyError):
        call("recipes")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ArgumentError("wrong"), 2),
        (errors.ArgumentTypeError("wrong"), 2),
        (errors.RunError("wrong"), 2),
        (errors.MissingFileError("wrong"), 2),
        (FileNotFoundError("wrong"), 2),
        (errors.UsageError("wrong"), 1),
        (errors.MissingPackageError("wrong", extra="train"), 1),
        (PermissionError("wrong"), 1),
        (MissingDataError("wrong"), 1),
        (DamagedDataError("wrong"), 1),
        (MemoryError("wrong"), 1),
        (torch.OutOfMemoryError("wrong\nwith advice"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_expected_error_is_one_line_with_its_exit_code(call, monkeypatch, error, code):
    def fails():
        raise error

    monkeypatch.setattr("flexconv.train.list_recipes", fails)
    assert_refused(call("recipes"), "wrong", code=code)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ("epochs=2026-13-45", "'epochs=2026-13-45' is not YAML"),
        ("epochs=!!int x", "'epochs=!!int x' is not YAML"),
        ("epochs=[", r"'epochs=\[' is not YAML"),
        ("optim=adam", "optim must be a mapping.*'adam'"),
        ("optim.betas=[0.8, 0.9]", "optim.betas can no longer be changed"),
        ("model.generator=[magnet]", r"generator \['magnet'\]"),
        ("model.generator_options=3", "generator_options must be a mapping.*3"),
        ("model.generator_options.hidden=x", "hidden must be an int.*'x'"),
        ("model.mask_options=wide", "mask_options must be a mapping.*'wide'"),
        ("model.algorithm=[fft]", r"algorithm \['fft'\]"),
        ("model={name: flexnet3, generator: siren, generator_options: {omega_0: x}}", "omega_0 must be a number.*'x'"),
        ("model={name: flexnet3, generator: mlp, generator_options: {activation: [relu]}}", r"activation \['relu'\]"),
        ("data.options.root=x", "'digits' has no options; got 'root'"),
        ("data={name: npz, options: {path: own.npz, test_share: null}}", "share to hold out.*None"),
        ("data={name: folder, options: {path: ., mode: [grey]}}", r"mode \['grey'\]"),
    ],
)
def test_wrong_value_in_a_recipe_is_one_line(call, tmp_path, change, pattern):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((20, 1, 8, 8), np.uint8), labels=np.arange(20) % 2)
    assert_refused(call("train", "digits", "--device", "cpu", "--set", change), pattern)


def test_wrong_value_in_a_fit_recipe_is_one_line(call):
    changes = ("--set", "target=gabor", "--set", "target_options={frequencies: [1, x]}")
    assert_refused(call("fit", "fit-gabor", "--device", "cpu", *changes), r"frequencies must be.*\[1, 'x'\]")


@pytest.mark.parametrize("content", ["- a list", "a: [", "when: 2026-13-45", "\xff", ""])
def test_recipe_file_that_cannot_be_read_is_one_line(call, tmp_path, content):
    (tmp_path / "mine.yaml").write_text(content, "latin-1")
    assert_refused(call("train", "mine.yaml"), "mine.yaml (is not|must be)")


def test_changed_files_of_a_run_are_one_line(call, finished, tmp_path):
    run = shutil.copytree(finished / "tiny", tmp_path / "run")
    (run / "results.json").write_text("[]")
    assert_refused(call("train", "--resume", "run"), "results.json is damaged.*list")
    config = json.loads((run / "weights" / "config.json").read_text())
    for entry in ({"inputs": 3}, {"resampled": [1]}, {"config": {**config["config"], "generator": []}}):
        (run / "weights" / "config.json").write_text(json.dumps({**config, **entry}))
        assert_refused(call("inspect", "run"), "config.json")
    (run / "recipe.yaml").write_text("kind: other")
    assert_refused(call("inspect", "run"), "recipe.yaml cannot be used.*'other'")


def test_ctrl_c_outside_of_training(call, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("flexconv.train.list_recipes", interrupted)
    stopped = call("recipes")
    assert (stopped.code, stopped.err) == (130, "stopped\n")


# --- recipes and data -------------------------------------------------------------------------------------------------


def test_recipes_are_not_wrapped_without_a_terminal(call):
    lines = call("recipes", "--all").out.splitlines()
    for line, (name, about) in zip(lines[1:], list_recipes().items(), strict=True):
        assert line.split(maxsplit=1) == [name, about]
        assert line == line.rstrip()
    short = call("recipes").out.splitlines()
    assert len(short) < len(lines) / 2
    assert any(line.split()[:2] == ["flexnet3-cifar10", "2"] for line in short)


def test_tables_fit_the_width_of_a_terminal(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("flexconv.cli._common.console._force_terminal", True)
    for arguments in (("recipes",), ("recipes", "--all"), ("data", "ls")):
        lines = call(*arguments).out.splitlines()
        assert max(map(len, lines[: lines.index("") if "" in lines else None])) <= 80


def test_printed_recipe_loads_as_the_same_recipe(call, tmp_path):
    shown = call("recipes", "flexnet3-cifar10", "--set", "epochs=3")
    assert "# flexnet3-cifar10/short: " in shown.out
    (tmp_path / "mine.yaml").write_text(shown.out)
    assert load_recipe(tmp_path / "mine.yaml") == load_recipe("flexnet3-cifar10", ["epochs=3"])


def test_data_ls_lists_data_sets(call, tmp_path):
    listed = call("data", "ls", "--root", tmp_path)
    assert listed.code == 0
    lines = {line.split()[0]: line for line in listed.out.splitlines() if line}
    assert "built-in" in lines["digits"]
    assert re.search(r"absent +CIFAR-10 rows followed by 968 steps of noise$", lines["npcifar10"])
    assert listed.out.endswith(f"data root: {tmp_path} (the given root)\n")


def test_data_ls_shows_the_details_of_one_data_set(call):
    told = call("data", "ls", "digits")
    assert all(word in told.out for word in ("built-in", "CC BY 4.0", "Alpaydin"))


def test_damaged_data_set_is_reported(call, tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"?")
    listed = call("data", "ls", "--root", tmp_path, "--check")
    assert re.search(r"^cifar10: .*test_batch.bin: truncated, 1 of", listed.out, re.MULTILINE)
    assert_refused(call("train", "flexnet3-cifar10", "--root", tmp_path), "cifar10 is not in .*data_batch_1", code=1)


def test_fetch_of_a_built_in_data_set(call):
    assert "needs no files" in call("data", "fetch", "digits").out


# --- training ---------------------------------------------------------------------------------------------------------


def test_run_draws_its_plots(finished):
    drawn = {path.name for path in RunFolder(finished / "tiny").plots.iterdir()}
    assert {"curves.png", "sizes.png", "masks.png"} <= drawn


def test_train_names_the_run_folder_after_the_recipe(call, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.yaml").write_text(TINY)
    first = call("train", "deep/mine.yaml", "--set", "epochs=1", "--set", "seed=3", "--device", "cpu")
    assert first.code == 0, first.err
    assert first.out.startswith("run folder: runs/mine\n")
    assert first.out.endswith("results, weights and plots are in runs/mine\n")
    assert re.search(r"test accuracy \d+\.\d\d %", first.out)
    recipe = RunFolder("runs/mine").read_recipe()
    assert (recipe.epochs, recipe.seed) == (1, 3)
    assert_refused(call("train", "deep/mine.yaml", "--out", "runs/mine"), "already contains a run.*--resume runs/mine")
    assert call("train", f"{tmp_path}/deep/mine.yaml/fp64").out.startswith("run folder: runs/mine-fp64\n")


@pytest.mark.parametrize("root", ["2024", "data #2", "a: b"])
def test_root_is_not_parsed_as_yaml(call, root):
    refused = call("train", "flexnet7-mnist", "--root", root)
    assert_refused(refused, rf"mnist is not in {root} \(the given root\)", code=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_printed_command_resumes_a_run_stopped_by_a_signal(call, finished, monkeypatch, number):
    step = loop.Trainer.step

    def stopped_at_3(trainer, batch):
        step(trainer, batch)
        if trainer.progress.step == 3:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "step", stopped_at_3)
        stopped = call("train", finished / "tiny.yaml", "--out", "a run", "--device", "cpu")
    assert stopped.code == 128 + number
    assert re.fullmatch(rf"stopped by {number.name}, .*: flexconv train --resume 'a run'\n", stopped.err)
    again = call("train", "--resume", "a run", "--root", "moved", "--set", "engine=eager", "--device", "cpu")
    assert RunFolder("a run").read_recipe().data.root == "moved"
    assert RunFolder("a run").read_recipe().engine == "eager"
    assert again.code == 0
    assert "resumed at step 3" in again.out
    whole, resumed = (RunFolder(folder).read_results() for folder in (finished / "tiny", "a run"))
    assert resumed["test_loss"] == whole["test_loss"]


def test_second_ctrl_c_names_the_run_too(call, finished, monkeypatch):
    def at_once(trainer, batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.Trainer, "step", at_once)
    stopped = call("train", finished / "tiny.yaml", "--out", "run", "--device", "cpu")
    assert (stopped.code, stopped.err) == (130, "stopped; continue with: flexconv train --resume run\n")


def test_resuming_a_finished_run_does_nothing(call, finished):
    accuracy = RunFolder(finished / "tiny").read_results()["test_accuracy"]
    again = call("train", "--resume", finished / "tiny")
    assert again.code == 0
    assert f"is already finished, with {100 * accuracy:.2f} % test accuracy after 2 epochs\n" in again.out
    assert "is already finished\n" in call("train", "--resume", finished / "cross").out


def test_diverged_run_exits_with_1(call, finished, monkeypatch):
    monkeypatch.setattr(loop, "penalties", lambda *_: float("nan"))
    failed = call("train", finished / "tiny.yaml", "--out", "run", "--device", "cpu")
    assert_refused(failed, "not finite at step 0", code=1)


def test_cross_resolution_prints_four_accuracies(call, finished, monkeypatch):
    monkeypatch.setattr("flexconv.train.train", lambda *_, **__: RunFolder(finished / "cross").read_results())
    out = call("train", finished / "cross.yaml", "--out", "run").out
    told = (r"source [\d.]+ %, out of the box", "with recalibrated batch norms", "fine-tuned")
    assert re.search("".join(rf"{words} [\d.]+ %\n" for words in told), out)


def test_fit(call, finished, monkeypatch):
    assert RunFolder(finished / "fit").read_results()["mean_mse"] > 0
    step = FitGroup.step

    def interrupted(group):
        step(group)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as context:
        context.setattr(FitGroup, "step", interrupted)
        stopped = call("fit", finished / "fit.yaml", "--out", "run", "--device", "cpu")
    assert (stopped.code, "continue with: flexconv fit --resume run" in stopped.err) == (130, True)
    assert_refused(call("fit", finished / "fit.yaml", "--out", "run"), "already contains a run")
    assert_refused(call("fit", finished / "fit.yaml", "--resume", "run"), "leave out the recipe")
    assert_refused(call("fit"), "give a recipe")
    assert_refused(call("train", "--resume", "run"), "flexconv fit --resume run")
    assert_refused(call("fit", "--resume", finished / "tiny"), "flexconv train --resume")
    again = call("fit", "--resume", "run", "--root", "moved", "--device", "cpu")
    assert "results and plots are in run" in again.out
    assert RunFolder("run").read_recipe().root == "moved"
    assert RunFolder("run").read_results()["targets"] == RunFolder(finished / "fit").read_results()["targets"]
    assert_refused(call("eval", finished / "fit"), "has no network")
    assert_refused(call("train", "--resume", finished / "fit" / ".."), "is not a run folder")


# --- trained networks -------------------------------------------------------------------------------------------


def score(text):
    """Accuracy in percent, count and loss in a printed line."""
    accuracy, count, loss = re.search(r": ([\d.]+) % of ([\d,]+)(?:, top-5 [\d.]+ %)?, loss ([\d.]+)", text).groups()
    return accuracy, int(count.replace(",", "")), loss


def logged(folder):
    results = RunFolder(folder).read_results()
    return f"{100 * results['test_accuracy']:.2f}", results["test_count"], f"{results['test_loss']:.4f}"


def test_eval_reproduces_the_logged_numbers(call, finished):
    for run in ("tiny", "series", "cross/source", "cross/target"):
        shown = call("eval", finished / run, "--device", "cpu")
        assert score(shown.out) == logged(finished / run)
        results = RunFolder(finished / run).read_results()
        numbers = json.loads(call("eval", finished / run, "--device", "cpu", "--json").out)
        assert (numbers["accuracy"], numbers["loss"]) == (results["test_accuracy"], results["test_loss"])


@pytest.mark.parametrize("variant", ["bf16", "fp64"])
def test_eval_keeps_the_precision_of_the_run(call, finished, variant):
    assert call("train", finished / f"tiny.yaml/{variant}", "--out", "run", "--device", "cpu").code == 0
    assert score(call("eval", "run", "--device", "cpu").out) == logged("run")


def test_eval_of_other_parts_data_and_weights(call, finished):
    assert score(call("eval", finished / "tiny", "--part", "validation").out)[1] == 288
    assert score(call("eval", finished / "tiny", "--part", "train", "--batch-size", 50).out)[1] == 1149
    assert score(call("eval", finished / "tiny" / "weights", "--data", "digits").out)[0] == logged(finished / "tiny")[0]
    target = call("eval", finished / "cross" / "target" / "weights", "--data", "digits", "--batch-size", 400)
    assert target.err == "digits: images are resized to 12×12, the input size of the network\n"
    assert score(target.out) == logged(finished / "cross" / "target")
    assert_refused(call("eval", finished / "tiny" / "weights"), "--data NAME")
    assert_refused(call("eval", finished / "tiny", "--part", "tset"), "'tset'.*'test'")
    assert_refused(call("eval", finished / "series", "--part", "validation"), "no validation part")
    assert_refused(call("eval", finished / "cross"), "name one of its stages.*cross/target or .*cross/source")
    assert_refused(call("eval", finished / "tiny", "--data", "cifar10"), "cifar10 is not in", code=1)


def test_other_data_is_standardised_as_in_training(call, finished, tmp_path):
    test = load_data("digits").test
    grey, labels = (test.inputs * test.scale).numpy().astype(np.float32), test.labels.numpy()
    np.savez(tmp_path / "own.npz", train_inputs=grey + 5, train_labels=labels, test_inputs=grey, test_labels=labels)
    shown = call("eval", finished / "tiny" / "weights", "--data", "npz", "--data-option", "path=own.npz")
    assert shown.code == 0, shown.err
    assert logged(finished / "tiny")[0] in shown.out


def test_eval_matches_classes_by_name(call, finished, tmp_path):
    """Folders sort classes by name, and arrays have the order of `class_names`."""
    test = load_data("digits").test
    gray, labels = (test.inputs * test.scale).numpy().astype(np.float32), 9 - test.labels.numpy()
    names = list("9876543210")
    arrays = {"train_inputs": gray, "train_labels": labels, "test_inputs": gray, "test_labels": labels}
    np.savez(tmp_path / "own.npz", **arrays, class_names=names)
    shown = call("eval", finished / "tiny" / "weights", "--data", "npz", "--data-option", "path=own.npz")
    assert shown.code == 0, shown.err
    assert score(shown.out)[0] == logged(finished / "tiny")[0]
    assert "by order" not in shown.err
    np.savez(tmp_path / "own.npz", **arrays, class_names=[f"digit {name}" for name in names])
    shown = call("eval", finished / "tiny" / "weights", "--data", "npz", "--data-option", "path=own.npz")
    assert score(shown.out)[0] != logged(finished / "tiny")[0]
    assert "matched by order: digit 9" in shown.err


def test_eval_refuses_data_with_other_classes(call, finished, tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((20, 1, 8, 8), np.uint8), labels=np.arange(20) % 2)
    own = ["--set", "data.name=npz", "--set", "data.options.path=own.npz", "--set", "data.validation=0"]
    assert call("train", finished / "tiny.yaml", "--out", "own", "--device", "cpu", *own).code == 0
    assert_refused(call("eval", "own", "--data", "digits"), "digits has 10 classes, but the network has 2")


@pytest.fixture
def photos(tmp_path):
    """20 gray images of 16×16 in 2 classes, in folders and as arrays."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 16, 16), dtype=np.uint8)
    for i, picture in enumerate(pixels):
        folder = tmp_path / "photos" / "ab"[i // 10]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(picture).save(folder / f"{i:02}.png")
    np.savez(tmp_path / "photos.npz", inputs=pixels[:, None], labels=np.arange(20) // 10)
    text = TINY.replace("{name: digits, validation: 0.2}", "{name: folder, options: {path: photos, mode: grey}}")
    (tmp_path / "photos.yaml").write_text(text)
    return tmp_path


def test_eval_and_resample_of_weights_on_own_data(call, photos):
    assert call("train", "photos.yaml", "--device", "cpu").code == 0
    folder = ("--data", "folder", "--data-option", "path=photos", "--data-option", "mode=grey")
    shown = call("eval", "runs/photos/weights", *folder)
    assert shown.out.startswith("folder test: "), shown.err
    assert score(shown.out) == logged("runs/photos")
    arrays = call("eval", "runs/photos/weights", "--data", "npz", "--data-option", "path=photos.npz")
    assert score(arrays.out) == logged("runs/photos")
    small = call("eval", "runs/photos/weights", *folder, "--data-option", "image_size=[8, 9]")
    assert small.err.startswith("photos: images are resized to 16×16")
    json.loads(call("eval", "runs/photos/weights", *folder, "--data-option", "image_size=[8, 9]", "--json").out)
    named_as_in_recipes = call("eval", "runs/photos/weights", *folder, "--data-option", "data.image_size=[8, 9]")
    assert named_as_in_recipes.out == small.out
    assert_refused(
        call("eval", "runs/photos/weights", "--data", "photos"), "^error: photos has 3 channels.* 1; add .*mode=gray"
    )
    shown = call("resample", "runs/photos/weights", "--to", 20, *folder)
    assert [row[0] for row in scores_by_resolution(shown.out)] == ["16×16", "20×20"]


def test_eval_of_weights_fine_tuned_at_another_size(call, photos):
    assert call("train", "photos.yaml", "--device", "cpu").code == 0
    model = "model={name: runs/photos/weights, pretrained: true}"
    again = ("train", "photos.yaml", "--set", model, "--set", "data.options.image_size=12", "--out", "again")
    with pytest.warns(UserWarning, match="trained on 16×16 images.*12×12"):
        assert call(*again, "--device", "cpu").code == 0
    folder = ("--data", "folder", "--data-option", "path=photos", "--data-option", "mode=grey")
    shown = call("eval", "again/weights", *folder, "--data-option", "image_size=12")
    assert score(shown.out) == logged("again"), shown.err


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("--data-option", "path=x"), "--data-option path=x needs --data.*--root"),
        (("--data", "folder"), "'folder' needs the option 'path'.*--data-option path="),
        (("--data", "folder", "--data-option", "path"), "KEY=VALUE.*'path'"),
        (("--data", "folder", "--data-option", "pth=x"), "'pth'.*'path'"),
        (("--data", "folder", "--data-option", "path=x", "--data-option", "root=x"), "unknown option.*'root'"),
        (("--data", "digits", "--data-option", "path=x"), "'digits' has no options; got 'path'"),
    ],
)
def test_wrong_data_options_are_errors(call, finished, arguments, pattern):
    assert_refused(call("eval", finished / "tiny", *arguments), pattern)


def test_error_suggests_root_if_the_data_have_moved(call, photos, monkeypatch):
    assert call("train", "photos.yaml", "--device", "cpu").code == 0
    (photos / "elsewhere").mkdir()
    shutil.copytree("runs/photos", "elsewhere/run")
    monkeypatch.chdir(photos / "elsewhere")
    assert_refused(call("eval", "run"), r"photos .*elsewhere/photos nor .*--root", code=1)
    assert score(call("eval", "run", "--root", photos).out) == logged("run")


def test_resample_uses_the_original_pixels(call, photos):
    """A network trained at 8×8 on images of 16×16 is resampled to 16×16 with the original images, not enlarged ones."""
    assert call("train", "photos.yaml", "--set", "data.resolution=8", "--device", "cpu").code == 0
    shown = call("resample", "runs/photos", "--to", 16)
    assert [row[0] for row in scores_by_resolution(shown.out)] == ["8×8", "16×16"]
    trained_on = load_data("folder", path="photos", image_size=16, mode="grey").at_resolution(8)
    there, _, _ = next(iter(DeviceBatches(trained_on.at_resolution(16).test, 20)))
    plain, _, _ = next(iter(DeviceBatches(load_data("folder", path="photos", mode="grey").test, 20)))
    assert torch.equal(there, plain)


TITLE = "\x1b]0;title\x07"  # sets the title of a terminal


def test_control_characters_are_shown_and_not_obeyed(call, tmp_path):
    for number, name in enumerate((f"cat{TITLE}", "dog\x9b31m\r\nmouse")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for index in range(4):
            pixels = np.full((8, 8), 100 * number + index, np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    (tmp_path / "photos.yaml").write_text(
        "model: {name: flexnet3, widths: [3], generator_options: {hidden: 4}}\n"
        "data: {path: photos, mode: gray}\nepochs: 1\nbatch_size: 6\n"
    )
    run = f"run{TITLE}[/b]"
    broken = tmp_path / f"broken{TITLE}\udcff.png"
    broken.write_bytes(b"?")
    outcomes = [
        call("train", "photos.yaml", "--device", "cpu", "--out", run),
        call("eval", run, "--device", "cpu"),
        call("eval", run, "--device", "cpu", "--json"),
        call("predict", run, "photos", "--device", "cpu"),
        call("predict", run, "photos", "--device", "cpu", "--json"),
        call("predict", run, broken, "--device", "cpu"),
        call("data", "show", "photos"),
        call("train", TITLE),
        call("train", "--resume", TITLE),
        call("train", f"--{TITLE}"),
    ]
    assert [outcome.code for outcome in outcomes] == [0, 0, 0, 0, 0, 1, 0, 2, 2, 2]
    for outcome in outcomes:
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", outcome.out + outcome.err)
    assert r"cat\u001b]0;title\u0007" in outcomes[1].out
    assert r"dog\u009b31m\u000d\u000amouse" in outcomes[1].out
    assert [each["class"] for each in json.loads(outcomes[2].out)["classes"]] == sorted(os.listdir("photos"))
    assert r"broken\u001b]0;title\u0007\udcff.png" in outcomes[5].err


def test_eval_of_an_unfinished_run_is_an_error(call, finished, tmp_path):
    RunFolder(tmp_path / "run").write_recipe(load_recipe(finished / "tiny.yaml"))
    assert_refused(call("eval", "run"), "no finished network.*--resume run")


def test_eval_of_a_run_without_its_weights_is_an_error(call, finished, tmp_path):
    for file in ("recipe.yaml", "results.json"):
        (tmp_path / "run").mkdir(exist_ok=True)
        shutil.copy(finished / "tiny" / file, tmp_path / "run")
    outcome = call("eval", "run")
    assert_refused(outcome, "run/weights is missing")
    assert "--resume" not in outcome.err  # the run is finished, so resuming would do nothing


def test_export_writes_no_file_if_there_is_no_test_set(call, finished, tmp_path):
    shutil.copytree(finished / "tiny", tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("  test: true", "  test: false"))
    assert_refused(call("export", "run", "--out", "a.safetensors", "--test"), "no test part")
    assert not (tmp_path / "a.safetensors").exists()


def test_commands_in_messages_quote_folders_with_spaces(call, finished, tmp_path):
    RunFolder(tmp_path / "my run").write_recipe(load_recipe(finished / "tiny.yaml"))
    assert_refused(call("eval", "my run"), "finish it: flexconv train --resume 'my run'$")
    used = call("train", finished / "tiny.yaml", "--out", "my run", "--device", "cpu")
    assert_refused(used, r"\(flexconv train --resume 'my run'\)")


def scores_by_resolution(output):
    """The last table of `flexconv resample`: rows of resolution, accuracy, "%" and loss."""
    lines = [line.split() for line in output.splitlines()]
    return lines[lines.index(["resolution", "test", "accuracy", "loss"]) + 1 :]


def test_resample_images(call, finished):
    shown = call("resample", finished / "tiny", "--to", 16, "--device", "cpu")
    assert shown.code == 0, shown.err
    rows = scores_by_resolution(shown.out)
    assert [row[0] for row in rows] == ["8×8", "16×16"]
    assert rows[0][1] == logged(finished / "tiny")[0]
    again = call("resample", finished / "tiny", "--to", "16x12", "--recalibrate", 2, "--crop", "hard").out
    assert scores_by_resolution(again)[1][0] == "16×12"
    same = call("resample", finished / "tiny", "--to", "8").out
    assert "band-limited" not in same
    assert len(set(map(tuple, scores_by_resolution(same)))) == 1


@pytest.fixture
def blobs(tmp_path):
    """300 gray images of 28×28 with a smooth spot in one of 4 corners, and a recipe for them."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 4
    centres = np.stack([labels // 2, labels % 2], 1) * 14 + 7 + rng.normal(size=(300, 2))
    rows, columns = np.mgrid[:28, :28]
    distance = (rows - centres[:, 0, None, None]) ** 2 + (columns - centres[:, 1, None, None]) ** 2
    images = 200 * np.exp(-distance / 18) + rng.integers(0, 40, (300, 28, 28))
    np.savez(tmp_path / "blobs.npz", inputs=images[:, None].astype(np.uint8), labels=labels)
    (tmp_path / "own.yaml").write_text(
        "model: {name: flexnet3, widths: [4, 4], generator_options: {hidden: 8}}\n"
        "data: {name: npz, options: {path: blobs.npz}}\n"
        "epochs: 1\nbatch_size: 50\nschedule: {warmup_epochs: 0}\n"
    )
    return tmp_path


def train_on_blobs(call, name, input_scale, sigma):
    """Train a network whose kernels start with frequencies up to about `input_scale` per tap."""
    options = (f"model.generator_options.input_scale={input_scale}", f"model.mask_options.sigma={sigma}")
    changes = [part for option in options for part in ("--set", option)]
    trained = call("train", "own.yaml", "--out", name, "--device", "cpu", *changes)
    assert trained.code == 0, trained.err


def test_resample_warns_about_kernels_that_are_not_band_limited(call, blobs):
    train_on_blobs(call, "rough", 200.0, 0.15)
    shown = call("resample", "rough", "--to", 56, "--device", "cpu")
    assert shown.code == 0, shown.err
    assert "not band-limited at 28×28: expect a loss" in shown.out
    assert "--recalibrate 10" in shown.out
    assert "alias penalty" in shown.out
    layers = [layer.name for layer in summarize(from_pretrained("rough/weights"))]
    assert [line.split()[0] for line in shown.out.splitlines()[1 : 1 + len(layers)]] == layers
    recalibrated = call("resample", "rough", "--to", 56, "--recalibrate", 2, "--device", "cpu")
    assert "not band-limited" in recalibrated.out
    assert "--recalibrate" not in recalibrated.out


@pytest.mark.parametrize("recalibrate", [False, True])
def test_resample_expects_a_small_loss_if_some_energy_is_folded(call, finished, monkeypatch, recalibrate):
    monkeypatch.setattr("flexconv.spectrum._report.SOME_TOTAL_ENERGY", 0.0)
    monkeypatch.setattr("flexconv.spectrum._report.MUCH_TOTAL_ENERGY", 100.0)
    options = ("--recalibrate", 2) if recalibrate else ()
    shown = call("resample", finished / "tiny", "--to", 32, "--device", "cpu", *options)
    assert shown.out.startswith("nearly band-limited at "), shown.err
    assert "a few points" in shown.out.splitlines()[0]
    assert ("--recalibrate 10" in shown.out) != recalibrate


def test_resample_expects_no_loss_of_band_limited_kernels(call, blobs):
    train_on_blobs(call, "smooth", 4.0, 0.3)
    shown = call("resample", "smooth", "--to", 56, "--device", "cpu")
    assert shown.out.startswith("band-limited at 28×28: expect about the same accuracy\n"), shown.err
    assert "--recalibrate" not in shown.out
    smaller = call("resample", "smooth", "--to", 24, "--device", "cpu")
    assert smaller.out.startswith("band-limited at 24×24: expect no other loss"), smaller.err


def test_recalibration_augments_images_as_in_training(call, finished, tmp_path, monkeypatch):
    shutil.copytree(finished / "tiny", tmp_path / "augmented")
    recipe = tmp_path / "augmented" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("augment: false", "augment: true"))
    asked = []

    def batches(split, *arguments, **settings):
        asked.append((len(split), settings.get("augment")))
        return DeviceBatches(split, *arguments, **settings)

    monkeypatch.setattr("flexconv.data.DeviceBatches", batches)
    for run, augment in ((finished / "tiny", None), ("augmented", "crop_flip")):
        asked.clear()
        assert call("resample", run, "--to", 16, "--recalibrate", 1, "--device", "cpu").code == 0
        test, train, test_at_16 = asked
        assert test == test_at_16
        assert (test[1], train[1]) == (None, augment)


@pytest.mark.parametrize("command", ["train", "fit"])
@pytest.mark.parametrize("out", ["file", "file/run"])
def test_out_must_not_be_a_file(call, finished, command, out):
    Path("file").touch()
    recipe = finished / {"train": "tiny.yaml", "fit": "fit.yaml"}[command]
    assert_refused(call(command, recipe, "--out", out), rf"{out} cannot be a run folder.*file is a file")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("--to", "big"), "--to must be.*'big'"),
        (("--to", "0"), "--to must be.*'0'"),
        (("--to", "8x8x8"), "--to must be"),
        (("--to", "100000000"), "--to 100000000×100000000 needs .* GiB.*smaller"),
        (("--to", "9" * 5000), "--to must be"),
        (("--to", "16", "--crop", "soft"), "'soft'.*'taper'"),
        (("--to", "16", "--recalibrate", "-1"), "--recalibrate"),
    ],
)
def test_wrong_options_of_resample_are_errors(call, finished, arguments, pattern):
    assert_refused(call("resample", finished / "tiny", *arguments), pattern)


def test_resample_series(call, finished):
    rows = scores_by_resolution(call("resample", finished / "series", "--to", 32, "--device", "cpu").out)
    assert [row[0] for row in rows] == ["64", "32"]
    assert rows[0][1] == logged(finished / "series")[0]
    recalibrated = call("resample", finished / "series", "--to", 128, "--recalibrate", 1)
    assert recalibrated.code == 0
    assert_refused(call("resample", finished / "series", "--to", "8x8"), "--to must be a number of samples such as 64;")


def test_resampled_series_are_the_same_function_of_time(tmp_path):
    time = np.arange(40, dtype=np.float32)
    inputs, lengths = np.stack([time, -time])[:, None], np.array([40, 20])
    labels = np.array([0, 1])
    parts = {f"{part}_{k}": v for part in ("train", "test") for k, v in (("inputs", inputs), ("labels", labels))}
    np.savez(tmp_path / "ramps.npz", **parts, train_lengths=lengths, test_lengths=lengths)
    split = load_data("npz", path=tmp_path / "ramps.npz").test
    batches = DeviceBatches(split, 2)
    before, _, _ = next(iter(batches))
    for size in (20, 80):
        after, labels, lengths = next(iter(ResampledSeries(batches, size)))
        assert after.shape == (2, 1, size)
        assert lengths.tolist() == [size, size // 2]
        middle = (torch.arange(size) + 0.5) * 40 / size - 0.5  # the moments of the new samples
        slope = before[:, 0, 1] - before[:, 0, 0]
        expected = before[:, 0, :1] + slope[:, None] * middle
        inside = slice(2, size // 2 - 2)
        torch.testing.assert_close(after[:, 0, inside], expected[:, inside], rtol=0, atol=1e-5)
        assert not after[1, 0, size // 2 :].any()
        assert after[1, 0, size // 2 - 1] < after[1, 0, size // 2 - 3] / 2  # (no padding in its end)


def test_recalibration_refuses_padded_series(call, finished, tmp_path):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(100, 1, 64)).astype(np.float32)
    np.savez(tmp_path / "own.npz", inputs=inputs, labels=np.arange(100) % 10, lengths=generator.integers(30, 65, 100))
    (tmp_path / "own.yaml").write_text(SERIES.replace("{name: sdigits}", "{name: npz, options: {path: own.npz}}"))
    assert call("train", "own.yaml", "--device", "cpu").code == 0
    assert call("resample", "runs/own", "--to", 128).code == 0
    assert_refused(call("resample", "runs/own", "--to", 128, "--recalibrate", 1), "unequal length")


def test_inspect_shows_small_sigmas_with_two_digits(call, tmp_path):
    model = create_model("flextcn2", in_channels=1, num_classes=2, length=784, widths=[3])
    model.blocks[0].conv1.mask.set_(sigma=0.01501)
    model.blocks[0].conv2.mask.set_(sigma=0.251)
    save_pretrained(model, tmp_path / "narrow")
    outcome = call("inspect", "narrow")
    assert re.search(r"blocks\.0\.conv1 .* 0\.015 ", outcome.out), outcome.out
    assert re.search(r"blocks\.0\.conv2 .* 0\.25 ", outcome.out), outcome.out


def test_inspect(call, finished):
    shown = call("inspect", finished / "tiny")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 96
    sizes = RunFolder(finished / "tiny").read_results()["sizes"]
    rows = {line.split()[0]: line.split() for line in lines[1 : 1 + len(sizes)]}
    assert {name: row[2] for name, row in rows.items()} == {k: "×".join(map(str, v)) for k, v in sizes.items()}
    assert {row[-1] for row in rows.values()} <= {"<1%", *(f"{share}%" for share in range(101))}
    aliased = {layer.name: layer.aliased for layer in summarize(from_pretrained(RunFolder(finished / "tiny").weights))}
    assert {name: "!" in "".join(row) for name, row in rows.items()} == aliased
    parameters = RunFolder(finished / "tiny").read_results()["parameters"]
    assert f"{parameters:,} parameters in total" in shown.out


def test_inspect_alarms_only_where_energy_is_folded(call, tmp_path):
    shown = call("inspect", "flexnet3-digits")  # it loses nothing at twice its resolution, whatever the bound says
    assert shown.code == 0, shown.err
    assert not re.search(r"\d%?!", shown.out)
    assert "; band-limited: " in shown.out
    options = {"widths": [3], "parametrization": "paper"}
    model = create_model("flextcn2", in_channels=1, num_classes=2, length=64, **options)
    generator = model.blocks[0].conv1.generator
    with torch.no_grad():  # kernels of 1.7 times the Nyquist frequency, 63/4 cycles per unit
        for zero in (generator.frequency, generator.mix_bias, generator.output.bias):
            zero.zero_()
        generator.frequency[0] = 2 * np.pi * 1.7 * 63 / 4
    save_pretrained(model, tmp_path / "fast")
    rows = call("inspect", "fast").out.splitlines()
    assert "; not band-limited: " in "".join(rows)
    assert re.search(r"blocks\.0\.conv1 .*\d%! ", rows[1])
    assert "!" not in rows[2]


def test_inspect_draws_pictures(call, finished, tmp_path):
    drawn = call("inspect", finished / "series", "--pictures", "pictures")
    assert drawn.code == 0, drawn.err
    assert drawn.out.endswith("5 pictures are in pictures\n")
    assert len(list((tmp_path / "pictures").iterdir())) == 5
    (tmp_path / "file").touch()
    refused = call("inspect", finished / "series", "--pictures", "file")
    assert_refused(refused, "--pictures file: this is a file, not a folder")


def test_inspect_writes_a_page(call, finished, tmp_path):
    written = call("inspect", finished / "series", "--html", "page.html")
    assert written.code == 0, written.err
    assert re.search(r"^page\.html: 0\.\d MB$", written.out, re.MULTILINE)
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "<title>series</title>" in text
    assert '"train_loss"' not in text
    assert '"loss":{"train":[' in text
    assert call("inspect", finished / "tiny", "--html", "page.html").code == 0
    assert "<title>a network of one block</title>" in (tmp_path / "page.html").read_text("utf-8")


def test_explore_writes_a_page_with_the_accuracy(call, finished, tmp_path):
    written = call("explore", finished / "tiny")
    assert written.code == 0, written.err
    assert re.search(r"^tiny\.html: 0\.\d MB$", written.out, re.MULTILINE)
    accuracy = RunFolder(finished / "tiny").read_results()["test_accuracy"]
    assert f'"accuracy":{{"value":{accuracy},"split":"test"' in (tmp_path / "tiny.html").read_text("utf-8")


def test_explore_finds_the_accuracy_of_a_folder_of_weights(call, finished, tmp_path):
    assert call("explore", finished / "tiny/weights", "--out", "page.html").code == 0
    accuracy = RunFolder(finished / "tiny").read_results()["test_accuracy"]
    assert f'"accuracy":{{"value":{accuracy}' in (tmp_path / "page.html").read_text("utf-8")
    shutil.copytree(finished / "tiny/weights", tmp_path / "shared")
    (tmp_path / "shared/README.md").write_text("| data | digits |\n| accuracy | 98.6 % of 360 images |\n")
    assert call("explore", "shared").code == 0
    assert '"accuracy":{"text":"98.6 % of 360 images"}' in (tmp_path / "shared.html").read_text("utf-8")


def test_explore_adds_samples_of_the_data(call, tmp_path):
    assert call("explore", "flexnet3-digits").code == 0
    text = (tmp_path / "flexnet3-digits.html").read_text("utf-8")
    assert len(re.findall(r'"pixels":"', text)) == 10
    assert '"label":9' in text


def test_explore_says_that_there_are_no_samples(call, monkeypatch):
    from flexconv.errors import MissingFileError

    def missing(*_, **__):
        raise MissingFileError("there is no data_batch_1.bin")

    monkeypatch.setattr("flexconv.cli._explore.load_with_data", missing)
    written = call("explore", "flexnet3-digits")
    assert written.code == 0
    assert "no samples of the data of flexnet3-digits: there is no data_batch_1.bin" in written.out + written.err


def test_explore_compares_two_networks(call, finished, tmp_path):
    assert call("explore", finished / "series", "flexnet3-digits", "--out", "both.html").code == 0
    text = (tmp_path / "both.html").read_text("utf-8")
    assert "<title>series and " in text
    assert '"accuracy":{"value":0.98' in text
    assert call("explore", finished / "series", finished / "tiny").code == 0
    assert (tmp_path / "series-tiny.html").is_file()


def test_explore_refuses_an_unknown_network(call, finished):
    assert_refused(call("explore", finished / "series", "nothing"), "nothing")


def test_inspect_refuses_an_unwritable_page(call, finished, tmp_path):
    assert_refused(call("inspect", finished / "series", "--html", "no/page.html"), "there is no folder no")
    assert_refused(call("inspect", finished / "series", "--html", tmp_path), "is a folder: give a file", code=1)


def test_inspect_of_a_network_without_masks(call, finished):
    out = call("train", finished / "tiny.yaml", "--set", "model.conv=ck", "--out", "run", "--set", "epochs=1")
    assert out.code == 0, out.err
    assert "–" in call("inspect", "run").out


# --- as a program -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["flexconv", "flexconv.cli"])
def test_runs_as_a_module_without_colors_or_wrapping(tmp_path, module):
    environment = {**os.environ, "COLUMNS": "40", "FLEXCONV_DATA": str(tmp_path)}
    command = [sys.executable, "-m", module]
    listed = subprocess.run([*command, "data", "ls"], capture_output=True, text=True, env=environment, check=True)
    assert re.search(r"^digits +built-in +Digits, 8 × 8 gray$", listed.stdout, re.MULTILINE)
    assert listed.stdout.endswith(f"data root: {tmp_path} (from FLEXCONV_DATA)\n")


def test_module_exits_with_the_code():
    refused = subprocess.run(
        [sys.executable, "-m", "flexconv", "train", "digts"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert re.fullmatch("error: .*'digts'.*'digits'.*\n", refused.stderr)


def test_entry_point_exits_with_the_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["flexconv", "data", "fetch", "x"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_warnings_are_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", ["flexconv", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert warnings.formatwarning("odd", UserWarning, "file.py", 3) == "warning: odd\n"
