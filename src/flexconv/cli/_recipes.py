"""flexconv recipes"""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ArgumentError
from ._common import Changes, print_table, say
from ._complete import complete, recipe_names


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Print this recipe as YAML, with all defaults.",
            autocompletion=complete(recipe_names),
        ),
    ] = None,
    changes: Changes = None,
    variants: Annotated[bool, typer.Option("--all", help="List all variants as well.")] = False,
) -> None:
    """List the recipes or print one of them."""
    from ..train import import_yaml, list_recipes, load_recipe, plain

    known = list_recipes()
    if name is not None:
        tree = plain(load_recipe(name, changes or []))
        say(import_yaml().safe_dump(tree, sort_keys=False, allow_unicode=True, width=1000).rstrip())
        for other, about in known.items():
            if other.startswith(f"{name}/"):
                say(f"# {other}: {about}")
        return
    if changes:
        raise ArgumentError("--set changes one recipe: give its name")
    if variants:
        print_table(("recipe", "about"), list(known.items()))
        return
    files = [recipe for recipe in known if "/" not in recipe]
    counts = [sum(recipe.startswith(f"{file}/") for recipe in known) for file in files]
    rows = [(file, f"{count or ''}", known[file]) for file, count in zip(files, counts, strict=True)]
    print_table(("recipe", "variants", "about"), rows, right=("variants",))
    say("\nflexconv recipes --all lists the variants; flexconv recipes NAME prints one recipe")
