"""Differentiable operators that are fast to call in eager code and opaque to compilers.

Each operator exists in two forms. Under `torch.compile` it is a `torch.library` custom operator, which the compiler
treats as a single node. Eager code calls a `torch.autograd.Function`, which has less overhead. The gradient is written
once, as calls of other operators, so every operator can be differentiated any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Operators = dict[str, Callable[..., Any]]

autograd_functions: Operators = {}
custom_operators: Operators = {}


def differentiable_operator(
    name: str,
    schema: str,
    forward: Callable[..., torch.Tensor],
    setup_context: Callable[[Any, tuple[Any, ...], torch.Tensor], None],
    backward: Callable[[Operators, Any, torch.Tensor], tuple[Any, ...]],
) -> Callable[..., torch.Tensor]:
    """Register an operator in both forms, and return a function that calls the suitable one.

    Arguments:
        name: Name of the custom operator in the namespace `flexconv`.
        schema: Signature of the custom operator, as for `torch.library.custom_op`.
        forward: Computes the result. It also runs on fake tensors, to infer shape and strides.
        setup_context: Called as `setup_context(ctx, inputs, output)` to save what the gradient needs.
        backward: Called as `backward(operators, ctx, grad)`, returns a gradient or None for every input. `operators`
            holds all operators by name, in the form to which `backward` belongs.

    """

    def eager_forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        output = forward(*inputs)
        setup_context(ctx, inputs, output)
        return output

    def eager_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return backward(autograd_functions, ctx, grad)

    def custom_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        first, second, *others = backward(custom_operators, ctx, grad)
        if hasattr(ctx, "matrices"):  # the gradient of a list of tensors must be a list
            second = [None] * len(ctx.matrices)
        return first, second, *others

    members = {"forward": staticmethod(eager_forward), "backward": staticmethod(eager_backward)}
    function: Any = type(name, (torch.autograd.Function,), members)
    operator = torch.library.custom_op(f"flexconv::{name}", forward, mutates_args=(), schema=schema)
    operator.register_fake(forward)
    operator.register_autograd(custom_backward, setup_context=setup_context)
    autograd_functions[name], custom_operators[name] = function.apply, operator
    return lambda *inputs: (custom_operators if torch.compiler.is_compiling() else autograd_functions)[name](*inputs)
