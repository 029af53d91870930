"""Recipes: files, bases, variants and overrides are converted to validated dataclasses and back."""

from __future__ import annotations

import dataclasses

import pytest

from flexconv.errors import ArgumentError
from flexconv.train import (
    AliasRecipe,
    CrossResolutionRecipe,
    DataRecipe,
    FitRecipe,
    ModelRecipe,
    Recipe,
    RunFolder,
    ScheduleRecipe,
    build_recipe,
    list_recipes,
    load_data,
    load_recipe,
    merge,
)
from flexconv.train import _read as reading

SMALL = {"model": {"name": "flexnet3"}, "data": {"name": "digits"}}


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """Replace the recipes of the package by files: recipes(name=text, …)."""
    monkeypatch.setattr(reading, "RECIPES", tmp_path)

    def write(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path

    return write


# --- merging ----------------------------------------------------------------------------------------------------------


def test_merges_mappings_and_replaces_other_values():
    base = {"a": 1, "b": {"c": 2, "d": [1, 2]}, "e": {"f": 1}}
    assert reading.merge(base, {"b": {"d": [3]}, "e": None, "g": {"h": 4}}) == {
        "a": 1,
        "b": {"c": 2, "d": [3]},
        "e": None,
        "g": {"h": 4},
    }
    assert base == {"a": 1, "b": {"c": 2, "d": [1, 2]}, "e": {"f": 1}}


def test_another_model_drops_options_of_the_old_one():
    base = {"model": {"name": "flexnet7", "generator": "gabor", "dropout": 0.5}}
    assert reading.merge(base, {"model": {"name": "ckcnn7"}})["model"] == {"name": "ckcnn7"}
    same = {"name": "flexnet7", "generator": "gabor", "dropout": 0.1}
    assert reading.merge(base, {"model": {"name": "flexnet7", "dropout": 0.1}})["model"] == same
    assert reading.merge(base, {"model": {"dropout": 0.1}})["model"] == same


def test_another_generator_drops_options_of_the_old_one():
    base = {"model": {"name": "flexnet7", "generator": "siren", "generator_options": {"omega_0": 3}, "dropout": 0.5}}
    merged = reading.merge(base, {"model": {"generator": "fourier", "generator_options": {"input_scale": 256}}})
    assert merged["model"]["generator_options"] == {"input_scale": 256}
    assert merged["model"]["dropout"] == 0.5
    assert "generator_options" not in reading.merge(base, {"model": {"generator": "magnet"}})["model"]
    kept = reading.merge(base, {"model": {"generator": "siren", "generator_options": {"hidden": 8}}})
    assert kept["model"]["generator_options"] == {"omega_0": 3, "hidden": 8}


def test_another_data_set_drops_options_of_the_old_one():
    base = {"data": {"name": "pmnist", "options": {"permutation_seed": 1}, "root": "here"}}
    assert reading.merge(base, {"data": {"name": "smnist"}})["data"] == {"name": "smnist", "root": "here"}
    assert reading.merge(base, {"data": {"validation": 0.1}})["data"]["options"] == {"permutation_seed": 1}


# --- files ------------------------------------------------------------------------------------------------------------


def test_loads_variants_and_variants_of_variants(recipes):
    recipes(
        net="""
about: a net
model: {name: flexnet3, dropout: 0.1}
data: {name: digits}
epochs: 7
variants:
  gabor: {about: with Gabor, model: {generator: gabor}}
  gabor-short: {base: gabor, epochs: 2}
  plain:
"""
    )
    assert list_recipes() == {
        "net": "a net",
        "net/gabor": "with Gabor",
        "net/gabor-short": "with Gabor",
        "net/plain": "a net",
    }
    short = load_recipe("net/gabor-short")
    options = {"dropout": 0.1, "generator": "gabor", "parametrization": "scaled"}
    assert (short.epochs, short.model.options) == (2, options)
    assert load_recipe("net/plain") == load_recipe("net")


def test_file_can_be_based_on_another_file_or_variant(recipes):
    recipes(
        first="about: first\nmodel: {name: flexnet3}\ndata: {name: digits}\nvariants: {long: {epochs: 9}}",
        second="base: first\nabout: second\nbatch_size: 8",
        third="base: first/long\nbatch_size: 4",
        fourth="base: third\nmodel: {dropout: 0}",
    )
    second, fourth = load_recipe("second"), load_recipe("fourth")
    assert (second.about, second.batch_size, second.epochs) == ("second", 8, 100)
    assert (fourth.about, fourth.batch_size, fourth.epochs, fourth.model.options["dropout"]) == ("", 4, 9, 0)
    assert set(list_recipes()) == {"first", "first/long", "second", "third", "fourth"}  # variants are not inherited


def test_variants_of_abstract_files_are_inherited(recipes):
    recipes(
        family="abstract: true\nmodel: {name: flexnet3}\nvariants: {a: {epochs: 5, optim: {lr: 1}}, b: {epochs: 6}}",
        child="base: family\ndata: {name: digits}\nvariants: {a: {optim: {clip: 2}}, c: {base: b, seed: 3}}",
    )
    assert list(list_recipes()) == ["child", "child/a", "child/b", "child/c"]
    a, c = load_recipe("child/a"), load_recipe("child/c")
    assert (a.epochs, a.optim.lr, a.optim.clip) == (5, 1.0, 2.0)
    assert (c.epochs, c.seed, c.data.name) == (6, 3, "digits")


def test_loads_user_files(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits\nepochs: 3\nvariants: {wide: {model: {widths: [32]}}}")
    (tmp_path / "next.yaml").write_text("base: mine.yaml/wide\nseed: 4")
    assert load_recipe(tmp_path / "mine.yaml").epochs == 3
    assert load_recipe(f"{tmp_path}/mine.yaml/wide").model.options["widths"] == [32]
    following = load_recipe(tmp_path / "next.yaml")
    assert (following.seed, following.epochs, following.model.options["widths"]) == (4, 3, [32])
    with pytest.raises(FileNotFoundError, match=r"no recipe file '.*absent\.yaml'"):
        load_recipe(tmp_path / "absent.yaml")


def test_rejects_circular_bases(recipes):
    recipes(
        a="base: b",
        b="base: a/x",
        itself="base: itself",
        net="model: {name: flexnet3}\nvariants: {x: {base: y}, y: {base: x}}",
    )
    with pytest.raises(ValueError, match="recipes cannot be based on each other: a → b → a/x → b"):
        load_recipe("a")
    with pytest.raises(ValueError, match="itself → itself"):
        load_recipe("itself")
    with pytest.raises(ValueError, match="variants cannot be based on each other: x → y → x"):
        load_recipe("net/x")


def test_rejects_invalid_files(recipes):
    recipes(text="just words", syntax="model: {name: flexnet3", variants="variants: {x: {base: z}}")
    with pytest.raises(ValueError, match=r"text\.yaml must be a mapping of recipe keys; got str"):
        load_recipe("text")
    with pytest.raises(ValueError, match=r"^syntax\.yaml is not YAML: .* in line \d+, column \d+$"):
        load_recipe("syntax")
    with pytest.raises(ValueError, match="unknown variant 'z' of recipe 'variants'"):
        load_recipe("variants/x")
    recipes(base="base: 3", list="variants: [x]", number="variants: {x: 3}")
    with pytest.raises(TypeError, match=r"base of base\.yaml must be the name of a recipe; got 3"):
        load_recipe("base")
    with pytest.raises(TypeError, match=r"variants of list\.yaml must be a mapping; got \['x'\]"):
        load_recipe("list")
    with pytest.raises(TypeError, match="variant 'x' of recipe 'number' must be a mapping; got 3"):
        load_recipe("number/x")


def test_rejects_binary_file(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"mine\.yaml is not UTF-8"):
        load_recipe(tmp_path / "mine.yaml")


def test_suggests_nearest_name():
    with pytest.raises(ValueError, match="unknown recipe 'flexnet7-cifr10': did you mean 'flexnet7-cifar10'"):
        load_recipe("flexnet7-cifr10")
    with pytest.raises(ValueError, match=r"variant 'gabr' of recipe 'flexnet7-cifar10'.*did you mean 'gabor'"):
        load_recipe("flexnet7-cifar10/gabr")
    with pytest.raises(ValueError, match=r"unknown recipe 'zzz'\. list_recipes"):
        load_recipe("zzz")


# --- changes from a command line --------------------------------------------------------------------------------------


def test_overrides_are_applied_last_and_in_order():
    changes = ["optim.lr=1e-3", "epochs=2", "model.widths=[4, 8]", "alias.weight=3", "optim.clip=5", "optim.clip=null"]
    recipe = load_recipe("digits", changes)
    assert (recipe.optim.lr, recipe.optim.clip) == (0.001, None)
    assert recipe.epochs == 2
    assert recipe.model.options["widths"] == [4, 8]
    assert recipe.alias == AliasRecipe(weight=3.0)
    assert load_recipe("digits", ["data.options.a.b=c"]).data.options == {"a": {"b": "c"}}


@pytest.mark.parametrize(("text", "value"), [("'3e4'", "3e4"), ('"2024"', "2024"), ("2024", 2024), ("3e4", 3e4)])
def test_quoted_number_stays_text(text, value):
    assert reading.parse_override(f"data.options.path={text}") == {"data": {"options": {"path": value}}}


def test_override_can_remove_the_penalty():
    assert load_recipe("cross-resolution-cifar10", ["alias=null"]).alias is None


@pytest.mark.parametrize("text", ["epochs", "=3", " = 3", ""])
def test_rejects_override_without_key_or_value(text):
    with pytest.raises(ValueError, match="must have the form key=value"):
        load_recipe("digits", [text])


@pytest.mark.parametrize("text", ["optim.lr=[1", "data={"])
def test_rejects_override_that_is_not_yaml(text):
    with pytest.raises(ValueError, match=r"^the value in .* is not YAML: .*$"):
        load_recipe("digits", [text])


def test_values_of_mapping_overrides_are_not_parsed():
    assert load_recipe("digits", [{"data": {"root": "data #2"}}]).data.root == "data #2"


# --- from mappings to dataclasses -------------------------------------------------------------------------------------


def test_defaults():
    recipe = build_recipe(SMALL)
    assert recipe == Recipe(model=ModelRecipe(name="flexnet3"), data=DataRecipe(name="digits"))
    assert recipe.schedule == ScheduleRecipe(name="cosine", warmup_epochs=5)


def test_kind_selects_the_class():
    crossing = build_recipe(SMALL | {"kind": "cross-resolution", "source": 8, "target": 16})
    assert type(crossing) is CrossResolutionRecipe
    fitting = build_recipe({"kind": "fit", "model": {"name": "siren", "hidden": 4}, "target": "gabor"})
    assert type(fitting) is FitRecipe
    assert fitting.model == ModelRecipe(name="siren", options={"hidden": 4})
    with pytest.raises(ValueError, match=r"unknown kind of recipe 'clasify'.*did you mean 'classify'"):
        build_recipe(SMALL | {"kind": "clasify"})


@pytest.mark.parametrize(
    "name", ["digits", "cross-resolution-cifar10/f-flexconv", "kodak/siren", "flextcn-smnist/ckcnn"]
)
def test_plain_is_the_inverse_of_build_recipe(name):
    import yaml

    recipe = load_recipe(name)
    tree = reading.plain(recipe)
    assert build_recipe(tree) == recipe
    text = yaml.safe_dump(reading.plain(recipe) | {"about": "Σ"}, allow_unicode=True).replace("!!python/tuple", "")
    assert build_recipe(yaml.safe_load(text) | {"about": recipe.about}) == recipe


@pytest.mark.parametrize(("old", "new"), [("together", "per_filter"), ("summed", "per_kernel")])
def test_accepts_former_names_of_alias_methods(old, new):
    """A recipe.yaml written by flexconv 0.1 loads without a warning and equals the same recipe with the new name."""
    recipe = build_recipe(SMALL | {"alias": {"method": old}})
    assert recipe.alias.method == new
    assert recipe == build_recipe(SMALL | {"alias": {"method": new}})


RETIRED = {
    "data": {"name": "digits", "split_seed": 0},
    "optim": {"betas": [0.9, 0.999], "momentum": 0.9},
    "schedule": {"floor": "1e-06"},
}


def test_accepts_retired_keys_with_their_fixed_value():
    """A recipe.yaml written by flexconv 0.1 states them."""
    assert build_recipe(SMALL | RETIRED) == build_recipe(SMALL)
    fitting = {"kind": "fit", "model": {"name": "siren"}, "target": "gabor"}
    assert build_recipe(fitting | {"images_at_once": None}) == build_recipe(fitting)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "digits", "split_seed": 3}}, "data.split_seed can no longer be changed from 0; got 3"),
        ({"optim": {"betas": [0.8, 0.999]}}, r"optim.betas can no longer be changed from .*; got \[0.8, 0.999\]"),
        ({"schedule": {"floor": 0}}, "schedule.floor can no longer be changed from 1e-06; got 0"),
    ],
)
def test_rejects_other_values_of_retired_keys(changes, message):
    with pytest.raises(ValueError, match=message):
        build_recipe(SMALL | changes)


def test_recipes_are_immutable():
    recipe = build_recipe(SMALL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.epochs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "key 'epoch' of the recipe.*did you mean 'epochs'"),
        ({"optim": {"learning_rate": 3}}, "key 'learning_rate' of optim"),
        ({"optim": {"weightdecay": 3}}, "key 'weightdecay' of optim.*did you mean 'weight_decay'"),
        ({"schedule": {"warmup": 3}}, "key 'warmup' of schedule.*did you mean 'warmup_epochs'"),
        ({"alias": {"wieght": 1}}, "key 'wieght' of alias.*did you mean 'weight'"),
        ({"source": 8}, "key 'source' of the recipe"),
        ({"model": {"widths": [3]}}, "model needs 'name'"),
        ({"model": "flexnet3"}, r"model must be a mapping .* \{name: flexnet3\}; got 'flexnet3'"),
        (
            {"data": {"name": "folder", "paht": "x"}},
            r"unknown key 'paht' of data.*did you mean 'path'",
        ),
        ({"data": {}}, "data needs 'name'"),
        ({"data": {"name": "digits", "protocol": "papers"}}, "data.protocol 'papers'.*did you mean 'paper'"),
        ({"data": {"name": "digits", "path": "x"}}, "unknown key 'path' of data"),
        ({"data": {"name": "digits", "resolution": 0}}, "data.resolution must be at least 1 pixel; got 0"),
        ({"data": {"name": "digits", "validation": 1.0}}, "data.validation must be .* got 1.0"),
        ({"schedule": {"name": "cosin"}}, "schedule.name 'cosin'.*did you mean 'cosine'"),
        ({"precision": "bf32"}, "precision 'bf32'"),
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1; got -1"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1; got 1.0"),
        ({"optim": {"lr": -0.1}}, "optim.lr must be a number from 0 to 1e\\+06; got -0.1"),
        ({"optim": {"lr": ".nan"}}, "optim.lr must be"),
        ({"optim": {"clip": "inf"}}, "optim.clip must be positive; got inf"),
        ({"optim": {"clip": 0}}, "optim.clip must be positive; got 0"),
        ({"model": {"name": "flexnet3", "device": "cuda"}}, "model.device cannot be set.*--device.*got 'cuda'"),
        ({"schedule": {"warmup_epochs": -1}}, "schedule.warmup_epochs must be"),
        ({"alias": {"method": "per_filtr"}}, "alias.method 'per_filtr'.*did you mean 'per_filter'"),
        ({"alias": {"formula": "papers"}}, "alias.formula 'papers'.*did you mean 'paper'"),
        ({"alias": {"weight": -1}}, "alias.weight must be a number from 0 to 1e\\+06; got -1"),
        ({"alias": {"weight": 1e30}}, "alias.weight .*got 1e\\+30"),
        ({"optim": {"lr": 1e38}}, "optim.lr .*got 1e\\+38"),
        ({"optim": {"lr": float("nan")}}, "optim.lr .*got nan"),
        ({"schedule": {"warmup_epochs": 1e308}}, "schedule.warmup_epochs .*got 1e\\+308"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds .*got nan"),
        ({"checkpoint_seconds": -5}, "checkpoint_seconds .*got -5"),
        ({"alias": {"cutoff": 0}}, "alias.cutoff must be positive; got 0"),
        ({"seed": 10**30}, r"seed must be at least 0 and below 2\*\*63; got 10"),
        ({"kind": ["classify"]}, r"unknown kind of recipe \['classify'\]"),
    ],
)
def test_rejects_invalid_values(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build_recipe(SMALL | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": "many"}, "epochs must be of type int; got 'many'"),
        ({"epochs": 2.5}, "epochs must be of type int; got 2.5"),
        ({"epochs": True}, "epochs must be of type int; got True"),
        ({"epochs": None}, "epochs must be of type int; got None"),
        ({"optim": {"lr": "fast"}}, "optim.lr must be of type float; got 'fast'"),
        ({"optim": {"lr": True}}, "optim.lr must be of type float; got True"),
        ({"optim": 3}, "optim must be a mapping of keys to values; got 3"),
        ({"data": "digits"}, "data must be a mapping of keys to values, .*{name: digits}; got 'digits'"),
        ({"data": {"name": "digits", "augment": 1}}, "data.augment must be of type bool; got 1"),
        ({"data": {"name": "digits", "options": [1]}}, r"data.options must be a mapping; got \[1\]"),
        ({"model": {"name": 3}}, "model.name must be of type str; got 3"),
        ({"model": {"name": "flexnet3", "options": 3}}, "model.options must be a mapping; got 3"),
        ({"deterministic": "yes"}, "deterministic must be of type bool; got 'yes'"),
    ],
)
def test_rejects_wrong_types(changes, message):
    with pytest.raises(TypeError, match=message):
        build_recipe(SMALL | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop": "soft"}, "unknown crop 'soft'"),
        ({"source": 1}, "source and target must be at least 2 .*; got 1 and 16"),
        ({"finetune_epochs": -1}, "finetune_epochs must be at least 0; got -1"),
        ({"data": {"name": "digits", "resolution": 8}}, "data.resolution must be left out"),
        ({"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_rejects_invalid_cross_resolution(changes, message):
    tree = SMALL | {"kind": "cross-resolution", "source": 8, "target": 16}
    with pytest.raises(ValueError, match=message):
        build_recipe(tree | changes)


def test_converts_strings_to_numbers():
    """YAML reads 1e-5 as a string, and integers where a float is expected."""
    recipe = build_recipe(SMALL | {"optim": {"lr": 1, "kernel_norm": "1e-5"}})
    assert recipe.optim.kernel_norm == 1e-5
    assert isinstance(recipe.optim.lr, float)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("my.csv", "table"),
        ("my.TSV", "table"),
        ("my.csv.gz", "table"),
        ("my.parquet", "table"),
        ("my.npz", "npz"),
        ("train-images-idx3-ubyte.gz", "idx"),
        ("photos", "folder"),
        ("photos.v2", "folder"),
    ],
)
def test_path_of_data_implies_its_name(path, name):
    data = build_recipe({"model": {"name": "flexnet3"}, "data": {"path": path}}).data
    assert (data.name, data.options) == (name, {"path": path})
    data = load_recipe("digits", [f"data.path={path}"]).data
    assert (data.name, data.options, data.resolution) == (name, {"path": path}, 16)


def test_options_of_data_may_stand_beside_its_name():
    beside = {"name": "table", "path": "a.csv", "label": "kind", "validation": 0.1}
    nested = {"name": "table", "options": {"path": "a.csv", "label": "kind"}, "validation": 0.1}
    assert build_recipe(SMALL | {"data": beside}) == build_recipe(SMALL | {"data": nested})
    for data in (beside, nested):
        for key in ("path", "options.path"):
            changed = build_recipe(reading.merge(SMALL | {"data": data}, reading.parse_override(f"data.{key}=b.csv")))
            assert changed.data.options == {"path": "b.csv", "label": "kind"}
            other = build_recipe(reading.merge(SMALL | {"data": data}, reading.parse_override(f"data.{key}=b.npz")))
            assert (other.data.name, other.data.options, other.data.validation) == ("npz", {"path": "b.npz"}, 0.1)


def test_model_options_can_be_nested():
    tree = {"name": "flexnet3", "options": {"dropout": 0.3}, "widths": [4]}
    options = build_recipe(SMALL | {"model": tree}).model.options
    assert options == {"dropout": 0.3, "widths": [4], "parametrization": "scaled"}


def test_recipes_state_the_parametrization(tmp_path):
    recipe = build_recipe(SMALL)
    assert recipe.model.options["parametrization"] == "scaled"
    folder = RunFolder(tmp_path)
    folder.write_recipe(recipe)
    assert folder.read_recipe() == recipe
    written = tmp_path / "recipe.yaml"
    written.write_text(written.read_text().replace("  parametrization: scaled\n", ""))  # as in older versions
    assert folder.read_recipe().model.options["parametrization"] == "paper"


def test_another_model_keeps_the_parametrization_unless_it_is_trained():
    base = {"name": "flexnet3", "dropout": 0.1, "parametrization": "paper"}
    changed = merge({"model": base}, {"model": {"name": "flextcn2"}})
    assert changed == {"model": {"name": "flextcn2", "parametrization": "paper"}}
    for changes in ({"pretrained": True}, {"pretrained": True, "name": "mine"}):
        assert "parametrization" not in merge({"model": base}, {"model": changes})["model"]
    trained = merge(changed, {"model": {"pretrained": True}})
    assert trained == {"model": {"name": "flextcn2", "pretrained": True}}


BOMB = "\n".join(f"  x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9) if i else 'lol'}]" for i in range(12))
MERGED = "\n".join(f"  x{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 9)}]}}" for i in range(1, 12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"data:\n  name: digits\n  options:\n{BOMB.replace('  x', '    x')}", "more than 100,000 values"),
        (f"model:\n  x0: &x0 {{a: 1}}\n{MERGED}", "more than 100,000 values"),
        ("data: &a {name: digits, options: *a}", "contains itself"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("seed: 0x" + "f" * 5000, "number of 5,002 digits"),
    ],
)
def test_rejects_yaml_that_expands_without_end(tmp_path, text, message):
    (tmp_path / "bomb.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=rf"^bomb\.yaml is not a recipe: .*{message}"):
        load_recipe(tmp_path / "bomb.yaml")
    override = "data.options={" + ", ".join(line.strip() for line in BOMB.splitlines()) + "}"
    with pytest.raises(ArgumentError, match="more than 100,000 values"):
        load_recipe("digits", [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nepochs: 2\nseed: 3", "'seed' in line 3 is already in line 1"),
        ("data:\n  name: digits\n  validation: 0.1\n  name: mnist", "'name' in line 4 is already in line 2"),
        ("model: {name: flexnet3, name: flexnet5}", "'name'"),
    ],
)
def test_rejects_a_key_that_occurs_twice(tmp_path, text, message):
    (tmp_path / "twice.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=rf"^twice\.yaml is not a recipe: .*{message}"):
        load_recipe(tmp_path / "twice.yaml")
    with pytest.raises(ArgumentError, match="'widths'"):
        load_recipe("digits", ["model={widths: [4], widths: [8]}"])


def test_recipes_may_use_aliases(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "base: digits\nmodel: &m {widths: [3]}\nvariants: {a: {model: {<<: *m, dropout: 0.5}}}"
    )
    recipe = load_recipe(f"{tmp_path}/mine.yaml/a")
    assert (recipe.model.options["widths"], recipe.model.options["dropout"]) == ([3], 0.5)


def test_resolution_of_series_is_an_error():
    recipe = build_recipe({"model": {"name": "flextcn2"}, "data": {"name": "sdigits", "resolution": 16}, "epochs": 1})
    with pytest.raises(ArgumentError, match=r"data\.resolution=16 .*sdigits are series; set data\.resolution=null"):
        load_data(recipe)
