"""What nobody can make deterministic today, with the reason, so that the catalog shows the whole of what a model runs."""

from __future__ import annotations

from perfgate import Op

tp_overlap = Op.exempt(
    "comm/tp_overlap",
    "tensor-parallel communication overlapped with its GEMM reduces chunks in the order in which they arrive over user "
    "buffers, and offers no fixed order; the determinism contract refuses the option instead",
    kind="external-lib",
)
float_collectives = Op.exempt(
    "comm/float_collectives",
    "NCCL's ring follows the topology of the nodes it is given: float sums repeat inside one allocation with NCCL_ALGO pinned, "
    "but another set of nodes may give another ring and other bits",
    kind="external-lib",
)
