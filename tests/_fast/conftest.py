"""Triton's interpreter, which runs the kernels where there is no GPU."""

from __future__ import annotations

import importlib.util

import torch


def mend_the_interpreter():
    """Let `range` accept numbers of a kernel.

    Triton 3.6 interprets them as arrays of one element and converts them by `int(array)`, an error since NumPy 2.4.
    """
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_lang_tensor


if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
    mend_the_interpreter()
