"""Copies of a call's inputs that keep what a kernel can see: layout, overlap, alignment, RNG state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

_ALIGNMENT = 64  # bytes: kernels choose vector widths, hence summation orders, by the pointer's alignment


def clone_inputs(inputs: Any) -> Any:
    """A deep copy of nested inputs in which every tensor has its own storage and keeps its layout.

    Sizes, strides (stride 0 and overlapping windows too), memory format, the pointer's alignment modulo 64 bytes,
    ``requires_grad`` and dtype stay; tensors become leaves. One tensor named twice stays one tensor. ``torch.Generator``
    objects are copied with their state. Other objects are passed on as they are.
    """
    return _clone(inputs, {})


def _clone(value: Any, seen: dict[int, Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)]
    copied = _clone_new(value, seen)
    seen[id(value)] = copied
    return copied


def _clone_new(value: Any, seen: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return clone_tensor(value)
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, Mapping):
        items = {key: _clone(item, seen) for key, item in value.items()}
        return items if type(value) is dict else _like(value, items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_clone(item, seen) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_clone(item, seen) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for each in fields(value):
            object.__setattr__(copied, each.name, _clone(getattr(value, each.name), seen))
        return copied
    return value


def _like(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    copied = copy.copy(original)
    for key, item in items.items():
        copied[key] = item  # type: ignore[index]
    return copied


def clone_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """One tensor, copied as :func:`clone_inputs` says; the gaps between its elements are copied too."""
    source = tensor.detach()
    if source.is_conj():
        return clone_tensor(source.conj()).conj().requires_grad_(tensor.requires_grad)
    if source.layout != torch.strided or source.is_neg() or type(source) is not torch.Tensor:
        copied = source.clone()
    else:
        copied = _clone_strided(source)
    return copied.requires_grad_(tensor.requires_grad)


def _clone_strided(source: torch.Tensor) -> torch.Tensor:
    if source.numel() == 0:
        return torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True))
    lead = source.data_ptr() % _ALIGNMENT // source.element_size()
    storage = torch.empty(lead + extent, dtype=source.dtype, device=source.device)
    storage[lead:].copy_(source.as_strided((extent,), (1,)))
    return storage.as_strided(source.shape, source.stride(), lead)
