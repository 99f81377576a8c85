"""perfgate: what determinism costs on this GPU, per NVTX range, against its budget, and whether the bits are equal.

``Op`` is what workload files need. ``range`` and ``steps`` mark a program's own NVTX ranges.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfgate.annotations import Range, steps
    from perfgate.registry import Case, Op

    range = Range  # noqa: A001 - an attribute of this name, no builtin here

__version__ = "0.1.0"
__all__ = ["Case", "Op", "__version__", "steps"]  # not range: an import of * would hide the builtin

_HOMES = {  # imported at first use: every command would wait for them
    "Case": ("registry", "Case"),
    "Op": ("registry", "Op"),
    "range": ("annotations", "Range"),
    "steps": ("annotations", "steps"),
}


def __getattr__(name: str) -> Any:
    """The names of :data:`__all__` and ``range``, imported at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'perfgate' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    found = globals()[name] = getattr(import_module(f"perfgate.{module}"), attribute)
    return found
