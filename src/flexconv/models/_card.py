"""Model cards: the README.md that accompanies the weights of a shared network."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..nn import refresh_extents
from ._base import Model
from ._inputs import Inputs

CARD = """---
library_name: flexconv
{licence}tags: [flexconv, continuous-kernels]
---
# {title}

{about}| | |
|---|---|
{facts}

```python
from flexconv import from_pretrained

model = from_pretrained({repo_id})  # {shape} → logits [batch, {classes}]
{call}```

Weights are safetensors; nothing is unpickled.

## Learned sizes

{sizes}
"""
_CALL = "logits = model(model.inputs(raw))  # raw: unscaled values, as in the data set\n"
MAX_LISTED = 12  # means and standard deviations in a card
_SIZES = {1: "length", 2: "height, width", 3: "depth, height, width"}


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What the weights do not say about a network. Empty entries are left out.

    Arguments:
        data: what it was trained on, and where the data come from.
        recipe: how it was trained: the name of a recipe, a command, or a sentence.
        accuracy: how accurate it is and on which data, as in "98.6 % of 360 test images".
        licence: the licence of the weights in the hub's notation ("mit", "cc-by-4.0"). Default: not stated.
        about: one or two sentences for the top of the card.

    """

    data: str
    recipe: str
    accuracy: str
    licence: str | None = None
    about: str = "A network whose convolutions learned their kernel sizes."

    def text(self, model: Model, repo_id: str) -> str:
        """The card in Markdown. `repo_id` is what has to be passed to `from_pretrained`."""
        parameters = sum(p.numel() for p in model.parameters())
        facts = {
            "network": f"{type(model).__name__}, {parameters:,} parameters",
            "data": self.data,
            **({} if model.inputs is None else _inputs(model.inputs)),
            "recipe": self.recipe,
            "accuracy": self.accuracy,
            "licence": self.licence or "not stated",
        }
        return CARD.format(
            licence=f"license: {json.dumps(self.licence)}\n" if self.licence else "",
            title=repo_id.rpartition("/")[2],
            about=f"{self.about}\n\n" if self.about else "",
            facts="\n".join(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value),
            repo_id=json.dumps(repo_id),
            shape=f"[batch, {model.in_channels}, {_SIZES[model.dims]}]",
            classes=model.num_classes,
            call="" if model.inputs is None else _CALL,
            sizes=_sizes(model),
        )


def _inputs(inputs: Inputs) -> dict[str, str]:
    mean, std = map(_numbers, (inputs.mean, inputs.std))
    scaled = f"x · {inputs.scale:.4g}"
    values = scaled if inputs.mfcc_rate is None else f"mfcc({scaled}, rate={inputs.mfcc_rate})"
    standard = f"({values} − mean) / std per channel, mean {mean}, std {std}"
    images = "" if inputs.images is None else f", made from images of {_times(inputs.images.size)}"
    return {"input": f"{_times(inputs.size)}{images}, {standard}", "classes": ", ".join(inputs.classes)}


def _numbers(values: tuple[float, ...]) -> str:
    """Numbers with four digits. Of many, the first three and the last are listed."""
    listed = [f"{value:.4g}" for value in values]
    return ", ".join(listed if len(listed) <= MAX_LISTED else [*listed[:3], "…", listed[-1]])


def _sizes(model: Model) -> str:
    extents = refresh_extents(model)
    if not extents:
        return "This network has no FlexConv layers."
    layers = dict(model.named_modules())
    rows = [
        f"| {name} | {_times(extent)} | {_times(layers[name].kernel_size)} |"  # type: ignore[arg-type]
        for name, extent in extents.items()
    ]
    return "\n".join(["| layer | learned size | largest size |", "|---|---|---|", *rows])


def _times(sizes: tuple[int, ...]) -> str:
    return "×".join(map(str, sizes))


def _cell(text: str) -> str:
    """Text on one line, with the column separator escaped."""
    return " ".join(text.split()).replace("|", "\\|")
