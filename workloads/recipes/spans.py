"""Ranges around what an op does in the forward and in the backward, which autograd runs later and unseen.

The backward's range is opened by the gradient of the op's outputs and closed by that of its inputs: two identity functions
around the op. Autograd works off ready nodes in the reverse order of their making, so that nothing of another op comes between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import perfgate


class _Opens(torch.autograd.Function):
    """Identity; its backward opens the range."""

    @staticmethod
    def forward(ctx: Any, span: Any, *outputs: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.span = span
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.span.__enter__()
        return None, *gradients


class _Closes(torch.autograd.Function):
    """Identity; its backward closes the range."""

    @staticmethod
    def forward(ctx: Any, span: Any, *inputs: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.span = span
        return tuple(given.view_as(given) for given in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.span.__exit__(None, None, None)
        return None, *gradients


def within(name: str, function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """``function(*inputs)`` in range ``NAME.fwd``, and what autograd makes of it in ``NAME.bwd``.

    ``function`` returns a tensor or a tuple of tensors; those that carry no gradient are handed on as they are. Every path of
    the gradient out of the function leads through ``inputs`` or a parameter (a leaf). Raises ``ValueError`` where outputs carry
    a gradient while no input does: nothing could close that range; hand the parameter over as an input.
    """
    with perfgate.range(f"{name}.fwd"):
        span = perfgate.range(f"{name}.bwd")
        given = _where_needed(_Closes, span, inputs)
        made = function(*given)
        outputs = made if isinstance(made, tuple) else (made,)
        if any(output.requires_grad for output in outputs) and not any(one.requires_grad for one in given):
            raise ValueError(f"range {name}.bwd would never close: no input of it needs a gradient")
        result = _where_needed(_Opens, span, outputs)
        return result if isinstance(made, tuple) else result[0]


def _where_needed(identity: Any, span: Any, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """``tensors``, those that carry a gradient through ``identity``."""
    carrying = [tensor for tensor in tensors if tensor.requires_grad]
    through = iter(identity.apply(span, *carrying) if carrying and torch.is_grad_enabled() else carrying)
    return tuple(next(through) if tensor.requires_grad else tensor for tensor in tensors)
