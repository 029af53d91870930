"""Triton's interpreter, which runs the kernels where there is no GPU."""

from __future__ import annotations

import functools
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


def patch_once():
    """Replace the functions of `triton.language` once per launch.

    Triton 3.6 replaces them again in every call of a function inside of a kernel, which is half of the time.
    """
    from triton.runtime import interpreter

    original = interpreter._patch_lang
    replaced = set()  # the modules whose functions were replaced during this launch

    class Scope:
        """Changes of a launch. Its kernel restores them, but functions inside of it do not, as in Triton."""

        def __init__(self, changes):
            self.changes = changes

        def restore(self):
            replaced.clear()
            self.changes.restore()

    @functools.cache
    def languages(function):
        known = interpreter.tl, interpreter.tl.core
        return frozenset(value.__name__ for value in function.__globals__.values() if any(value is m for m in known))

    def patch_lang(function):
        found = languages(function)
        if found and found <= replaced:
            return None  # what the caller does not use
        replaced.update(found)
        return Scope(original(function))

    interpreter._patch_lang = patch_lang


if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
    mend_the_interpreter()
    patch_once()
