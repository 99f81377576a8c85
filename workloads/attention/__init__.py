"""Scaled dot-product attention: the ops, and ``sdpa``, the drop-in with the champion (imported with torch at first use)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dropin import sdpa as sdpa


def __getattr__(name: str) -> Any:
    if name == "sdpa":
        from .dropin import sdpa

        return sdpa
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
