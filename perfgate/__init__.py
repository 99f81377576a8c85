"""perfgate: what determinism costs on this GPU, per NVTX range, against its budget, and whether the bits are equal.

``Op`` is what workload files need. ``range`` and ``steps`` mark a program's own NVTX ranges.
"""

from perfgate.registry import Case, Op

__version__ = "0.1.0"
__all__ = ["Case", "Op", "__version__"]
