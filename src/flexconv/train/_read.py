"""Recipes: everything that decides a training run, in a small YAML file, checked before anything starts.

    flexnet7-cifar10.yaml                                       names
        about: FlexNet-7 on CIFAR-10
        model: {name: flexnet7}
        data: {name: cifar10, augment: true}
        epochs: 350                                             flexnet7-cifar10
        variants:
          gabor: {model: {generator: gabor}}                    flexnet7-cifar10/gabor
          gabor-short: {base: gabor, epochs: 10}                flexnet7-cifar10/gabor-short

A file may begin from another one (`base: NAME`, or a file beside it); a variant changes what it names and keeps the
rest. A file with `abstract: true` is only there to begin from, and hands on its variants too. `key.inner=value` from a
command line comes last. What comes out is a frozen dataclass; an unknown key is an error with the nearest name.
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

from .._arguments import unknown_name
from ..errors import ArgumentError, ArgumentTypeError, MissingFileError, MissingPackageError
from .recipe import KINDS, RETIRED, AnyRecipe, DataRecipe, ModelRecipe

RECIPES = Path(__file__).parent.parent / "recipes"
_FILE = re.compile(r"(?P<file>.+\.ya?ml)(?:/(?P<variant>.+))?")


def load_recipe(name: str | Path, overrides: Sequence[str | Mapping[str, Any]] = ()) -> AnyRecipe:
    """A recipe by name, such as "flexnet7-cifar10/gabor", or from a YAML file.

    With changes `key.inner=value`, whose values are YAML, or {"key": {"inner": value}}, whose values are as they are.
    """
    tree = _tree(str(name))
    for override in overrides:
        tree = merge(tree, parse_override(override) if isinstance(override, str) else override)
    return build_recipe(tree)


def build_recipe(tree: Mapping[str, Any]) -> AnyRecipe:
    """A recipe from nested mappings, as YAML gives them; what `plain` makes of one leads back to it."""
    tree = dict(tree)
    kind = tree.pop("kind", "classify")
    if not isinstance(kind, str) or kind not in KINDS:
        unknown_name("kind of recipe", kind, KINDS)
    return _build(KINDS[kind], tree, "")


def plain(recipe: AnyRecipe) -> dict[str, Any]:
    """The recipe as nested dictionaries of numbers, text and lists, with every default written out."""
    kind = next(name for name, cls in KINDS.items() if type(recipe) is cls)
    tree = _lists(dataclasses.asdict(recipe))
    if "model" in tree:
        model = tree["model"]
        trained = {"pretrained": True} if model["pretrained"] else {}
        tree["model"] = {"name": model["name"], **trained, **model["options"]}
    return {"kind": kind, **tree}


def _lists(value: Any) -> Any:
    """`value` with lists in place of tuples, which YAML does not have."""
    if isinstance(value, Mapping):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, tuple | list) else value


def list_recipes() -> dict[str, str]:
    """Every recipe that comes with the package: name → what it is about."""
    names: list[str] = []
    for path in sorted(RECIPES.glob("*.yaml")):
        content, _ = _file(path.stem)
        if not content.get("abstract", False):
            names += [path.stem, *(f"{path.stem}/{variant}" for variant in content["variants"])]
    return {name: _tree(name).get("about", "") for name in names}


_BELONGS_TO = {"options": "name", "generator_options": "generator"}  # of a data set, of a generator


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the entries of `changes` in place of its own, mappings merged key by key.

    What is changed for another one leaves its options behind: the model, the generator, the data set. Whether the model
    is a trained one is no such option.
    """
    result = dict(base)
    for options, owner in _BELONGS_TO.items():
        if owner in changes and changes[owner] != base.get(owner):
            result.pop(options, None)
    for key, value in changes.items():
        old = result.get(key)
        if key == "model" and isinstance(old, Mapping) and isinstance(value, Mapping) and "name" in value:
            kept = {k: v for k, v in old.items() if k == "pretrained"}
            result[key] = merge(old if value["name"] == old.get("name") else kept, value)
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def _tree(name: str) -> dict[str, Any]:
    """The merged mapping of a recipe: bases first, then the file, then the variant."""
    content, variant = _file(name)
    tree = {key: value for key, value in content.items() if key not in ("variants", "abstract")}
    return _apply_variant(tree, content["variants"], variant, _without(name, variant)) if variant else tree


def _file(name: str, above: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """The mapping of the file of a recipe on top of its base's, and which variant the name asks for.

    `above` are the recipes that begin from this one.
    """
    if name in above:
        raise ArgumentError(f"recipes cannot begin from each other: {' → '.join((*above, name))}")
    path, variant = _locate(name)
    content = _read(path)
    content["variants"] = _mapping(content.get("variants"), f"variants of {path.name}")
    if "base" not in content:
        return content, variant
    base_name = content.pop("base")
    if not isinstance(base_name, str):
        raise ArgumentTypeError(f"base of {path.name} must name a recipe; got {base_name!r}")
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
    """The file of a recipe, and the variant: "NAME/VARIANT", or "FILE.yaml/VARIANT"."""
    own = _FILE.fullmatch(name)
    stem, _, variant = (own["file"], "/", own["variant"] or "") if own else name.partition("/")
    path = Path(stem) if own else RECIPES / f"{stem}.yaml"
    if own and not path.is_file():
        beside = [str(each) for each in path.parent.glob("*.y*ml")]
        near = difflib.get_close_matches(str(path), beside, n=1)
        raise MissingFileError(f"there is no recipe file {stem!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    if not path.is_file():
        near = difflib.get_close_matches(name, list_recipes(), n=1)
        hint = f": did you mean {near[0]!r}?" if near else "."
        raise ArgumentError(f"unknown recipe {name!r}{hint} list_recipes() (flexconv recipes) has all of them")
    return path, variant


def _apply_variant(
    tree: dict[str, Any], variants: Mapping[str, Any], name: str, recipe: str, above: tuple[str, ...] = ()
) -> dict[str, Any]:
    if name not in variants:
        unknown_name(f"variant of recipe {recipe!r}", name, variants)
    if name in above:
        raise ArgumentError(f"variants cannot begin from each other: {' → '.join((*above, name))}")
    changes = _mapping(variants[name], f"variant {name!r} of recipe {recipe!r}")
    if "base" in changes:
        tree = _apply_variant(tree, variants, changes.pop("base"), recipe, (*above, name))
    return merge(tree, changes)


def _mapping(value: object, what: str) -> dict[str, Any]:
    """A copy of a mapping, or of nothing."""
    if not isinstance(value, Mapping | None):
        raise ArgumentTypeError(f"{what} must be a mapping; got {value!r}")
    return dict(value or {})


def _without(name: str, variant: str) -> str:
    return name.removesuffix(f"/{variant}")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path.name} is not text in UTF-8: {error}") from error
    content = _parse(text, path.name)
    if not isinstance(content, dict):
        raise ArgumentError(f"{path.name} must be a mapping of recipe keys; got {type(content).__name__}")
    return dict(content)


@functools.lru_cache(maxsize=128)
def _parse(text: str, what: str) -> Any:
    """Read YAML. The result is cached, as it is slow and bases are read again and again: do not change it in place."""
    try:
        return import_yaml().safe_load(text)
    except (import_yaml().YAMLError, ValueError, AttributeError) as error:  # the last two: a date in month 13
        raise ArgumentError(f"{what} is not YAML: {_one_line(error)}") from error


def parse_override(text: str) -> dict[str, Any]:
    """`optim.lr=0.1` → {"optim": {"lr": 0.1}}; the value is YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ArgumentError(f"a change to a recipe is written key=value, as in optim.lr=0.001; got {text!r}")
    leaf = _parse(value, f"the value in {text!r}")
    if isinstance(leaf, str):
        with contextlib.suppress(ValueError):  # YAML reads 1e-3 as text
            leaf = float(leaf)
    *outer, last = key.strip().split(".")
    tree: dict[str, Any] = {last: leaf}
    for part in reversed(outer):
        tree = {part: tree}
    return tree


def _one_line(error: Exception) -> str:
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    told = f"{problem} in line {mark.line + 1}, column {mark.column + 1}" if problem and mark else str(error)
    return " ".join(told.split())


def import_yaml() -> types.ModuleType:
    """Import PyYAML, or raise an error that names the extra which installs it."""
    try:
        import yaml  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise MissingPackageError('recipes need PyYAML: pip install "flexconv[train]"') from error
    return yaml


# --- from mappings to dataclasses -------------------------------------------------------------------------------------


def _build(cls: type, tree: object, path: str) -> Any:
    if not isinstance(tree, Mapping):
        instead = f", as in {{name: {tree}}}" if path in ("model", "data") and isinstance(tree, str) else ""
        raise ArgumentTypeError(f"{path or 'a recipe'} must be a mapping of keys to values{instead}; got {tree!r}")
    if cls is ModelRecipe:  # everything but these is an option of the model, which the registry knows
        own = {key: value for key, value in tree.items() if key in ("name", "pretrained")}
        options = _mapping(tree.get("options"), f"{path}.options")
        options |= {key: value for key, value in tree.items() if key not in (*own, "options")}
        tree = {**own, "options": options}
    hints, values = typing.get_type_hints(cls), {}
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key, value in tree.items():
        if key in RETIRED.get(path, {}):
            _check_retired(path, key, value)
            continue
        if key not in fields:
            own = " (what the data set takes is under data.options)" if cls is DataRecipe else ""
            unknown_name(f"key of {path or 'the recipe'}{own}", key, fields)
        values[key] = _convert(hints[key], value, f"{path}.{key}" if path else str(key))
    missing = [
        name
        for name, f in fields.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ArgumentError(f"{path or 'the recipe'} lacks {', '.join(map(repr, missing))}")
    return cls(**values)


def _check_retired(path: str, key: str, value: object) -> None:
    if (fixed := RETIRED[path][key]) not in (value, _number(value)):
        raise ArgumentError(f"{path}.{key} can no longer be changed from {fixed}; got {value!r}: leave it out")


def _number(value: object) -> object:
    """Text that is a number as that number, such as 1e-3, which YAML reads as text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _convert(hint: Any, value: object, path: str) -> Any:
    """`value` as the type that a field declares."""
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
