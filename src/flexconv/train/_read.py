"""Recipes: everything that decides a training run, in a small YAML file, checked before anything starts.

    flexnet7-cifar10.yaml                                       names
        about: FlexNet-7 on CIFAR-10
        model: {name: flexnet7}
        data: {name: cifar10, augment: true}
        epochs: 350                                             flexnet7-cifar10
        variants:
          gabor: {model: {generator: gabor}}                    flexnet7-cifar10/gabor
          gabor-short: {base: gabor, epochs: 10}                flexnet7-cifar10/gabor-short

A file may begin from another one (`base: NAME`); a variant changes what it names and keeps the rest. `key.inner=value`
from a command line comes last. What comes out is a frozen dataclass; an unknown key is an error with the nearest name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._arguments import unknown_name
from .recipe import KINDS, AnyRecipe, ModelRecipe

RECIPES = Path(__file__).parent.parent / "recipes"


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> AnyRecipe:
    """A recipe by name, such as "flexnet7-cifar10/gabor", or from a YAML file; with changes `key.inner=value`."""
    tree = _tree(str(name))
    for override in overrides:
        tree = merge(tree, _parse_override(override))
    return build_recipe(tree)


def build_recipe(tree: Mapping[str, Any]) -> AnyRecipe:
    """A recipe from nested mappings, as YAML gives them; what `plain` makes of one leads back to it."""
    tree = dict(tree)
    kind = tree.pop("kind", "classify")
    if kind not in KINDS:
        unknown_name("kind of recipe", kind, KINDS)
    return _build(KINDS[kind], tree, "")


def plain(recipe: AnyRecipe) -> dict[str, Any]:
    """The recipe as nested dictionaries of plain values, every default written out."""
    kind = next(name for name, cls in KINDS.items() if type(recipe) is cls)
    tree = dataclasses.asdict(recipe)
    if "model" in tree:
        model = tree["model"]
        tree["model"] = {"name": model["name"], **model["options"]}
    return {"kind": kind, **tree}


def list_recipes() -> dict[str, str]:
    """Every recipe that comes with the package: name → what it is about."""
    found: dict[str, str] = {}
    for path in sorted(RECIPES.glob("*.yaml")):
        content = _read(path)
        about = _resolve_base(content).get("about", "")
        if not content.get("abstract", False):
            found[path.stem] = about
        for variant, changes in (content.get("variants") or {}).items():
            found[f"{path.stem}/{variant}"] = (changes or {}).get("about", about)
    return found


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the entries of `changes` in place of its own, mappings merged key by key."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if key == "model" and isinstance(old, Mapping) and isinstance(value, Mapping) and "name" in value:
            same = value["name"] == old.get("name")
            result[key] = merge(old, value) if same else dict(value)  # another model has other options
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def _tree(name: str) -> dict[str, Any]:
    """The merged mapping of a recipe: bases first, then the file, then the variant."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"there is no recipe file {name!r}")
        return _without_variants(_resolve_base(_read(path)))
    stem, _, variant = name.partition("/")
    path = RECIPES / f"{stem}.yaml"
    if not path.is_file():
        unknown_name("recipe", name, list_recipes())
    content = _read(path)
    tree = _without_variants(_resolve_base(content))
    return _apply_variant(tree, content.get("variants") or {}, variant, stem) if variant else tree


def _apply_variant(tree: dict[str, Any], variants: Mapping[str, Any], name: str, stem: str) -> dict[str, Any]:
    if name not in variants:
        unknown_name(f"variant of recipe {stem!r}", name, variants)
    changes = dict(variants[name] or {})
    if "base" in changes:
        tree = _apply_variant(tree, variants, changes.pop("base"), stem)
    return merge(tree, changes)


def _resolve_base(content: Mapping[str, Any]) -> dict[str, Any]:
    if "base" not in content:
        return dict(content)
    own = {key: value for key, value in content.items() if key != "base"}
    return merge({k: v for k, v in _tree(content["base"]).items() if k != "about"}, own)


def _without_variants(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in ("variants", "abstract")}


def _read(path: Path) -> dict[str, Any]:
    content = _yaml().safe_load(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} must be a mapping of recipe keys; got {type(content).__name__}")
    return content


def _parse_override(text: str) -> dict[str, Any]:
    """`optim.lr=0.1` → {"optim": {"lr": 0.1}}; the value is YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"a change to a recipe is written key=value, as in optim.lr=0.001; got {text!r}")
    leaf = _yaml().safe_load(value)
    if isinstance(leaf, str):
        with contextlib.suppress(ValueError):  # YAML reads 1e-3 as text
            leaf = float(leaf)
    *outer, last = key.strip().split(".")
    tree: dict[str, Any] = {last: leaf}
    for part in reversed(outer):
        tree = {part: tree}
    return tree


def _yaml() -> types.ModuleType:
    try:
        import yaml  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise ImportError('recipes need PyYAML: pip install "flexconv[train]"') from error
    return yaml


# --- from mappings to dataclasses -------------------------------------------------------------------------------------


def _build(cls: type, tree: object, path: str) -> Any:
    if not isinstance(tree, Mapping):
        raise TypeError(f"{path or 'a recipe'} must be a mapping of keys to values; got {tree!r}")
    if cls is ModelRecipe:  # everything but the name is an option of the model, which the registry knows
        options = {**tree.get("options", {}), **{k: v for k, v in tree.items() if k not in ("name", "options")}}
        tree = {"options": options, **({"name": tree["name"]} if "name" in tree else {})}
    hints, values = typing.get_type_hints(cls), {}
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key, value in tree.items():
        if key not in fields:
            unknown_name(f"key of {path or 'the recipe'}", key, fields)
        values[key] = _convert(hints[key], value, f"{path}.{key}" if path else str(key))
    missing = [
        name
        for name, f in fields.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{path or 'the recipe'} lacks {', '.join(map(repr, missing))}")
    return cls(**values)


def _convert(hint: Any, value: object, path: str) -> Any:
    """`value` as the type that a field declares."""
    if typing.get_origin(hint) is types.UnionType:
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        hint = next(option for option in options if option is not type(None))
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path)  # type: ignore[arg-type]
    if typing.get_origin(hint) is tuple:
        kinds = typing.get_args(hint)
        if not isinstance(value, Sequence) or len(value) != len(kinds):
            raise TypeError(f"{path} must be a list of {len(kinds)} values; got {value!r}")
        return tuple(_convert(kind, v, path) for kind, v in zip(kinds, value, strict=True))
    if hint is float and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    kind = Mapping if typing.get_origin(hint) is not None else hint
    right = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value, right = float(value), True
    if not right:
        raise TypeError(
            f"{path} must be {'a mapping' if kind is Mapping else f'of type {kind.__name__}'}; got {value!r}"
        )
    return value
