"""Steps of an algorithm that are differentiable by each other, in two forms.

Eager code calls autograd functions, which are faster to call; compilers get custom operators, and see each step as one
operation. A step's gradient is written once, as calls of other steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Steps = dict[str, Callable[..., Any]]

_eager: Steps = {}  # autograd Functions: called faster
_opaque: Steps = {}  # custom operators: what compilers need


def step(name: str, schema: str, body: Callable[..., torch.Tensor], keep: Any, gradient: Any) -> Any:
    """`body` with its gradient, in both forms; `keep` fills ctx.

    `gradient(steps, ctx, grad)` gets all steps in the form that it is called from, and gives a gradient per argument.
    """

    def eager_body(ctx: Any, *inputs: Any) -> torch.Tensor:
        output = body(*inputs)
        keep(ctx, inputs, output)
        return output

    def eager_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return gradient(_eager, ctx, grad)

    def opaque_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        first, second, *others = gradient(_opaque, ctx, grad)
        if hasattr(ctx, "matrices"):  # of a list, operators want a list
            second = [None] * len(ctx.matrices)
        return first, second, *others

    members = {"forward": eager_body, "backward": eager_gradient}
    function: Any = type(name, (torch.autograd.Function,), {key: staticmethod(each) for key, each in members.items()})
    operator = torch.library.custom_op(f"flexconv::{name}", body, mutates_args=(), schema=schema)
    operator.register_fake(body)
    operator.register_autograd(opaque_gradient, setup_context=keep)
    _eager[name], _opaque[name] = function.apply, operator
    return lambda *each: (_opaque if torch.compiler.is_compiling() else _eager)[name](*each)
