"""What a file says about its input and output, for programs that do not have flexconv."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._version import __version__
from ..models import Inputs
from ._standalone import raw_dtype, raw_range, raw_shape

LAYOUTS = {3: "NCL", 4: "NCHW", 5: "NCDHW"}  # by the number of axes of the input
INPUTS = "flexconv.inputs"  # the entry with `Inputs.plain()`

Metadata = dict[str, Any]


def describe(
    name: str,
    inputs: Inputs | None,
    *,
    shape: tuple[int, ...],
    preprocessing: bool,
    output: str | None,
    precision: str,
) -> Metadata:
    """The metadata of a file. Entries that are not known are left out.

    Arguments:
        name: the name of the network.
        inputs: the preprocessing and the classes of the network, if they are known.
        shape: the shape of the example. It determines the layout, and the size if that is not known.
        preprocessing: whether the file contains the preprocessing.
        output: "probabilities", "logits" or None.
        precision: of the computation, "float32", "float16" or "int8".

    """
    sample = shape[1:]
    if inputs is not None:
        known = raw_shape(inputs) if preprocessing else (len(inputs.mean), *inputs.size)
        sample = known if len(known) == len(sample) else sample
    channels, *size = sample or (None,)
    entries: Metadata = {
        "flexconv": __version__,
        "network": name,
        "precision": precision,
        "preprocessing": "included" if preprocessing else "none",
        "input_layout": LAYOUTS.get(len(shape)),
        "input_channels": channels,
        "input_size": size or None,
        "input_dtype": "float32",
        "output": output,
    }
    if inputs is not None:
        entries |= {
            "sampling_rate": inputs.mfcc_rate or inputs.rate,
            "classes": list(inputs.classes),
            INPUTS: inputs.plain(),
        }
    if inputs is not None and preprocessing:
        limits = raw_range(inputs)
        entries |= {
            "input_dtype": str(raw_dtype(inputs)).removeprefix("torch."),
            "input_range": None if limits is None else list(limits),
        }
    return {key: value for key, value in entries.items() if value is not None}


def as_text(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata for formats that store text only: everything but text is JSON."""
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in metadata.items()
    }
