"""Read recipes from YAML files.

    flexnet7-cifar10.yaml                                       names
        about: FlexNet-7 on CIFAR-10
        model: {name: flexnet7}
        data: {name: cifar10, augment: true}
        epochs: 350                                             flexnet7-cifar10
        variants:
          gabor: {model: {generator: gabor}}                    flexnet7-cifar10/gabor
          gabor-short: {base: gabor, epochs: 10}                flexnet7-cifar10/gabor-short

A file can be based on another recipe (`base: NAME`, or a file in the same folder). A variant states only the keys that
it changes. A file with `abstract: true` is only a base for other files, which also inherit its variants. Overrides
`key.inner=value` from the command line are applied last. The result is a frozen dataclass. An unknown key is an error
that suggests the nearest known one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import data as datasets
from .._arguments import unknown_name
from ..data import dataset_for
from ..errors import ArgumentError, ArgumentTypeError, MissingFileError, MissingPackageError
from .recipe import KINDS, RETIRED, AnyRecipe, DataRecipe, ModelRecipe

RECIPES = Path(__file__).parent.parent / "recipes"
MOST_VALUES = 100_000  # of a recipe
LONGEST_NUMBER = 100  # digits
_FILE = re.compile(r"(?P<file>.+\.ya?ml)(?:/(?P<variant>.+))?")


def load_recipe(name: str | Path, overrides: Sequence[str | Mapping[str, Any]] = ()) -> AnyRecipe:
    """Return a recipe by its name, such as "flexnet7-cifar10/gabor", or from a YAML file.

    Overrides are strings `key.inner=value`, whose values are parsed as YAML, or mappings {"key": {"inner": value}}.
    """
    tree = _tree(str(name))
    for override in overrides:
        tree = merge(tree, parse_override(override) if isinstance(override, str) else override)
    return build_recipe(tree)


def build_recipe(tree: Mapping[str, Any]) -> AnyRecipe:
    """Build a recipe from nested mappings, as read from YAML. The inverse of `plain`."""
    tree = dict(tree)
    kind = tree.pop("kind", "classify")
    if not isinstance(kind, str) or kind not in KINDS:
        unknown_name("kind of recipe", kind, KINDS)
    return _build(KINDS[kind], tree, "")


def plain(recipe: AnyRecipe) -> dict[str, Any]:
    """Convert a recipe to nested dictionaries of numbers, strings and lists that state every default."""
    kind = next(name for name, cls in KINDS.items() if type(recipe) is cls)
    tree = _lists(dataclasses.asdict(recipe))
    if "model" in tree:
        model = tree["model"]
        trained = {"pretrained": True} if model["pretrained"] else {}
        tree["model"] = {"name": model["name"], **trained, **model["options"]}
    return {"kind": kind, **tree}


def _lists(value: Any) -> Any:
    """Replace tuples by lists, because YAML has no tuples."""
    if isinstance(value, Mapping):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, tuple | list) else value


def list_recipes() -> dict[str, str]:
    """Return the recipes of the package: a description by name."""
    names: list[str] = []
    for path in sorted(RECIPES.glob("*.yaml")):
        content, _ = _file(path.stem)
        if not content.get("abstract", False):
            names += [path.stem, *(f"{path.stem}/{variant}" for variant in content["variants"])]
    return {name: _tree(name).get("about", "") for name in names}


_DATA_KEYS = {f.name for f in dataclasses.fields(DataRecipe)}
_BELONGS_TO = {"options": "name", "generator_options": "generator"}  # options of a data set, of a generator


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `changes`. Nested mappings are merged key by key.

    If `changes` name another model, generator or data set, the options of the old one are dropped, except for
    `model.pretrained` and `model.parametrization`. A path of data implies the name of the data set.
    """
    result = dict(base)
    for options, owner in _BELONGS_TO.items():
        if owner in changes and changes[owner] != base.get(owner):
            result.pop(options, None)
    for key, value in changes.items():
        old = result.get(key)
        if key == "model" and isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = _merge_model(old, value)
        elif key == "data" and isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = _merge_data(old, value)
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def _merge_model(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`merge` for the model of a recipe.

    Another model keeps the parametrization, because the learning rates of a recipe belong to it. A trained model has
    its own.
    """
    if "name" in changes and changes["name"] != base.get("name"):
        base = {key: value for key, value in base.items() if key in ("pretrained", "parametrization")}
    if changes.get("pretrained", base.get("pretrained")):
        base = {key: value for key, value in base.items() if key != "parametrization"}
    return merge(base, changes)


def _merge_data(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`merge` for the data of a recipe, whose options may stand under `options` or beside it."""
    given = changes.get("options")
    given = given if isinstance(given, Mapping) else {}
    path = changes.get("path", given.get("path"))
    if path is not None and "name" not in changes:
        changes = {"name": dataset_for(path), **changes}
    replaced = "name" in changes and changes["name"] != base.get("name")
    kept = {k: v for k, v in base.items() if k in _DATA_KEYS or not (replaced or k in given)}
    if replaced:
        kept.pop("options", None)
    return merge(kept, changes)


def _tree(name: str) -> dict[str, Any]:
    """Return the merged mapping of a recipe: first the bases, then the file, then the variant."""
    content, variant = _file(name)
    tree = {key: value for key, value in content.items() if key not in ("variants", "abstract")}
    return _apply_variant(tree, content["variants"], variant, _without(name, variant)) if variant else tree


def _file(name: str, above: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """Return the mapping of a recipe file, merged with its base, and the variant that the name asks for.

    `above` lists the recipes that are based on this one.
    """
    if name in above:
        raise ArgumentError(f"recipes cannot be based on each other: {' → '.join((*above, name))}")
    path, variant = _locate(name)
    content = _read(path)
    content["variants"] = _mapping(content.get("variants"), f"variants of {path.name}")
    if "base" not in content:
        return content, variant
    base_name = content.pop("base")
    if not isinstance(base_name, str):
        raise ArgumentTypeError(f"base of {path.name} must be the name of a recipe; got {base_name!r}")
    if _FILE.fullmatch(base_name):
        base_name = str(path.parent / base_name)
    base, base_variant = _file(base_name, (*above, name))
    variants = base.pop("variants")
    abstract = base.pop("abstract", False)
    if base_variant:
        base = _apply_variant(base, variants, base_variant, _without(base_name, base_variant))
    base.pop("about", None)
    return merge({**base, "variants": variants if abstract else {}}, content), variant


def _locate(name: str) -> tuple[Path, str]:
    """Return the file and the variant of a name "NAME/VARIANT" or "FILE.yaml/VARIANT"."""
    own = _FILE.fullmatch(name)
    stem, _, variant = (own["file"], "/", own["variant"] or "") if own else name.partition("/")
    path = Path(stem) if own else RECIPES / f"{stem}.yaml"
    if own and not path.is_file():
        beside = [str(each) for each in path.parent.glob("*.y*ml") if each.is_file()]
        near = difflib.get_close_matches(str(path), beside, n=1)
        raise MissingFileError(f"there is no recipe file {stem!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    if not path.is_file() and Path(name).exists():
        raise ArgumentError(
            f"{name} is not a recipe, which is a .yaml file or a name; if it is your data, write a recipe with "
            f"data: {{path: {name}}}, or add --set data.path={name} to the name of one"
        )
    if not path.is_file():
        near = difflib.get_close_matches(name, list_recipes(), n=1)
        hint = f": did you mean {near[0]!r}?" if near else "."
        raise ArgumentError(f"unknown recipe {name!r}{hint} list_recipes() (flexconv recipes) lists all recipes")
    return path, variant


def _apply_variant(
    tree: dict[str, Any], variants: Mapping[str, Any], name: str, recipe: str, above: tuple[str, ...] = ()
) -> dict[str, Any]:
    if name not in variants:
        unknown_name("variant", name, variants, of=f"of recipe {recipe!r}")
    if name in above:
        raise ArgumentError(f"variants cannot be based on each other: {' → '.join((*above, name))}")
    changes = _mapping(variants[name], f"variant {name!r} of recipe {recipe!r}")
    if "base" in changes:
        tree = _apply_variant(tree, variants, changes.pop("base"), recipe, (*above, name))
    return merge(tree, changes)


def _mapping(value: object, what: str) -> dict[str, Any]:
    """Return a copy of a mapping; None is an empty one."""
    if not isinstance(value, Mapping | None):
        raise ArgumentTypeError(f"{what} must be a mapping; got {value!r}")
    return dict(value or {})


def _without(name: str, variant: str) -> str:
    return name.removesuffix(f"/{variant}")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path.name} is not UTF-8 text: {error}") from error
    return parse_recipe(text, path.name)


def parse_recipe(text: str, what: str) -> dict[str, Any]:
    """Parse the text of a recipe file. `what` names it in messages."""
    content = _parse(text, what)
    if not isinstance(content, dict):
        raise ArgumentError(f"{what} must be a mapping of recipe keys; got {type(content).__name__}")
    return dict(content)


@functools.lru_cache(maxsize=128)
def _parse(text: str, what: str) -> Any:
    """Parse YAML. Cached, because parsing is slow and bases are read often: do not modify the result."""
    yaml = import_yaml()
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _expanded_size(node, what, {})
        _check_keys(node, what)
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, AttributeError) as error:  # the last two: a date in month 13
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{what} is not YAML: {_one_line(error)}") from error
    except RecursionError as error:
        raise ArgumentError(f"{what} is not a recipe: it is nested too deeply") from error


def _expanded_size(node: Any, what: str, sizes: dict[int, int]) -> int:
    """Return the number of values of a YAML node, with aliases counted each time that they are used.

    Raises an error if there are too many: aliases of aliases can make a few lines as large as memory. `sizes` contains
    the nodes that were counted before.
    """
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise ArgumentError(f"{what} is not a recipe: a value contains itself")
        return sizes[id(node)]
    sizes[id(node)] = 0
    value = getattr(node, "value", None)
    if isinstance(value, str) and node.tag.endswith(":int") and len(value) > LONGEST_NUMBER:
        raise ArgumentError(f"{what} is not a recipe: it contains a number of {len(value):,} digits")
    parts = (
        [part for item in value for part in (item if isinstance(item, tuple) else (item,))]
        if isinstance(value, list)
        else []
    )
    size = 1 + sum(_expanded_size(part, what, sizes) for part in parts)
    if size > MOST_VALUES:
        raise ArgumentError(f"{what} is not a recipe: it has more than {MOST_VALUES:,} values")
    sizes[id(node)] = size
    return size


def _check_keys(node: Any, what: str) -> None:
    """Raise an error if a mapping in a YAML node contains a key twice. PyYAML would ignore the first one."""
    lines: dict[str, int] = {}  # of the keys
    for item in node.value if isinstance(getattr(node, "value", None), list) else []:
        value = item
        if isinstance(item, tuple):
            key, value = item
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise ArgumentError(
                    f"{what} is not a recipe: the key {name!r} in line {line} is already in line {lines[name]}"
                )
            lines[name] = line
        _check_keys(value, what)


def parse_override(text: str) -> dict[str, Any]:
    """`optim.lr=0.1` → {"optim": {"lr": 0.1}}; the value is YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ArgumentError(f"an override must have the form key=value, for example optim.lr=0.001; got {text!r}")
    leaf = _parse(value, f"the value in {text!r}")
    if not value.lstrip().startswith(("'", '"')):  # a quoted number is text
        leaf = _number(leaf)
    *outer, last = key.strip().split(".")
    tree: dict[str, Any] = {last: leaf}
    for part in reversed(outer):
        tree = {part: tree}
    return tree


def _one_line(error: Exception) -> str:
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    message = f"{problem} in line {mark.line + 1}, column {mark.column + 1}" if problem and mark else str(error)
    return " ".join(message.split())


def import_yaml() -> types.ModuleType:
    """Import PyYAML, or raise an error that names the extra which installs it."""
    try:
        import yaml  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise MissingPackageError("recipes need PyYAML", extra="train") from error
    return yaml


# --- from mappings to dataclasses -------------------------------------------------------------------------------------


def _build(cls: type, tree: object, path: str) -> Any:
    if not isinstance(tree, Mapping):
        instead = f", for example {{name: {tree}}}" if path in ("model", "data") and isinstance(tree, str) else ""
        raise ArgumentTypeError(f"{path or 'a recipe'} must be a mapping of keys to values{instead}; got {tree!r}")
    if cls is ModelRecipe:  # all other keys are options of the model, which the registry validates
        own = {key: value for key, value in tree.items() if key in ("name", "pretrained")}
        options = _mapping(tree.get("options"), f"{path}.options")
        options |= {key: value for key, value in tree.items() if key not in (*own, "options")}
        tree = {**own, "options": options}
    if cls is DataRecipe:
        tree = _nest_data_options(tree, path)
    hints, values = typing.get_type_hints(cls), {}
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key, value in tree.items():
        name = f"{path}.{key}" if path else str(key)
        if key in RETIRED.get(path, {}):
            _check_retired(name, value, RETIRED[path][key])
            continue
        if key not in fields:
            unknown_name("key", key, fields, of=f"of {path or 'the recipe'}")
        values[key] = _convert(hints[key], value, name)
    missing = [
        name
        for name, f in fields.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ArgumentError(f"{path or 'the recipe'} needs {', '.join(map(repr, missing))}")
    return cls(**values)


def _nest_data_options(tree: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Move the options of a data set under `options`, and find the name of the data set by its path."""
    options = _mapping(tree.get("options"), f"{path}.options")
    beside = {key: value for key, value in tree.items() if key not in _DATA_KEYS and key not in RETIRED[path]}
    options |= beside
    nested = {key: value for key, value in tree.items() if key not in beside}
    if "name" not in nested and "path" in options:
        nested["name"] = dataset_for(options["path"])
    name = nested.get("name")
    known = datasets.options(name) if name in datasets.list_datasets() else {}
    for key in beside:
        if key not in known:
            unknown_name("key", key, {*_DATA_KEYS, *known}, of=f"of {path}")
    return {**nested, "options": options} if options else nested


def _check_retired(name: str, value: object, fixed: object) -> None:
    """Raise an error for a retired key, unless it has the value that applies anyway."""
    if fixed not in (value, _number(value)):
        raise ArgumentError(f"{name} can no longer be changed from {fixed}; got {value!r}: leave it out")


def _number(value: object) -> object:
    """Convert a string to a number if possible: YAML reads 1e-3 as a string."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _convert(hint: Any, value: object, path: str) -> Any:
    """Convert `value` to the type that a field declares."""
    if typing.get_origin(hint) is types.UnionType:
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        hint = next(option for option in options if option is not type(None))
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path)  # type: ignore[arg-type]
    if hint is float:
        value = _number(value)
    kind = Mapping if typing.get_origin(hint) is not None else hint
    right = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value, right = float(value), True
    if not right:
        raise ArgumentTypeError(
            f"{path} must be {'a mapping' if kind is Mapping else f'of type {kind.__name__}'}; got {value!r}"
        )
    return value
