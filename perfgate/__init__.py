"""perfgate: what determinism costs on this GPU, per NVTX range, against its budget, and whether the bits are equal.

``Op`` is what workload files need. ``range`` and ``steps`` mark a program's own NVTX ranges.
"""

from typing import TYPE_CHECKING, Any

from perfgate.registry import Case, Op

if TYPE_CHECKING:
    from perfgate.annotations import Range, steps

    range = Range  # noqa: A001 - an attribute of this name, no builtin here

__version__ = "0.1.0"
__all__ = ["Case", "Op", "__version__", "steps"]  # not range: an import of * would hide the builtin

_ANNOTATIONS = {"range": "Range", "steps": "steps"}


def __getattr__(name: str) -> Any:
    """``perfgate.range`` and ``perfgate.steps``, imported at first use."""
    if name not in _ANNOTATIONS:
        raise AttributeError(f"module 'perfgate' has no attribute {name!r}")
    from perfgate import annotations

    found = globals()[name] = getattr(annotations, _ANNOTATIONS[name])
    return found
