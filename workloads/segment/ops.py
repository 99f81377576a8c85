"""segment/index_add and segment/index_put: rows added to the rows of a smaller table by id."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

from ..blocks.segment.shape import sorted_sum_bytes
from .ids import make_ids


def _bytes(case: Case, _phase: str) -> int:
    """Rows and ids read once, the f32 table written once."""
    return int(case.rows * (case.width * 4 + 8) + case.segments * case.width * 4)


def _workspace(case: Case) -> int:
    return int(sorted_sum_bytes(case.rows, case.segments, case.width, output=case.segments * case.width * 4))


CASES: dict[str, dict[str, Any]] = dict(
    smoke=dict(rows=512, width=64, segments=32),
    small=dict(rows=8192, width=512, segments=1024),
    typical=dict(rows=65536, width=1024, segments=4096),
    large=dict(rows=524288, width=1024, segments=32768),
    edge_unique=dict(rows=65536, width=1024, segments=65536, ids="unique"),
    edge_zipf=dict(rows=65536, width=1024, segments=4096, ids="zipf"),
    edge_one_id=dict(rows=65536, width=1024, segments=4096, ids="one"),
    edge_one_row=dict(rows=1, width=1024, segments=4096),
    edge_odd_width=dict(rows=65536, width=1023, segments=4096),
)


def _enough_bits(case: Case, _device: str) -> str:
    """Exact accumulation leaves 24 bits less log2 of an id's rows: none to spare where one id has thousands of f32 rows."""
    if case.get("ids") in ("zipf", "one"):
        return "24 bits less log2(rows of the hottest id) leave too few for f32 values"
    return ""


def _declare(name: str, racy: str) -> Op:
    op = Op(
        name,
        kind="triton",
        racy=racy,
        max_error=1e-4,
        bytes_moved=_bytes,
        flops=lambda case, _phase: case.rows * case.width,
        tests=("tests/unit/workloads/test_segment.py", "tests/gpu/test_kernels.py"),
    )
    op.cases(**CASES)
    op.inputs(inputs)
    op.reference(reference)
    op.champion("triton.sorted_fold", backend="triton", workspace=_workspace)(sorted_fold)
    op.candidate("triton.radix_fold", backend="triton")(radix_fold)
    exactly = dict(backend="triton", supports=_enough_bits)
    op.candidate("triton.exact", workspace=lambda case: 8 * case.segments, **exactly)(exact)
    op.candidate("triton.exact_certified", workspace=lambda case: 20 * case.segments, **exactly)(exact_certified)
    op.contender("triton.atomic", backend="triton")(atomic)
    return op


def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Values [N, W] f32, ids [N] int64 below ``segments``, and the quanta a step before would have left (``exponents``)."""
    import torch

    values = torch.randn(case.rows, case.width, device=device, generator=generator)
    ids = make_ids(case.get("ids", "random"), case.rows, case.segments, device, generator)
    exponents = torch.from_numpy(_quanta_of_a_step_before(values, ids, case.segments)).to(device)
    return {"values": values, "ids": ids, "segments": case.segments, "exponents": exponents}


def _quanta_of_a_step_before(values: Any, ids: Any, segments: int) -> Any:
    """What a step with values of the same scale leaves: 2^23 quanta hold the sum of an id's row maxima, 2^20 the largest.

    Biased exponents [segments] int32, made on the host so that they are the same in both modes.
    """
    import numpy as np

    tops, at = values.abs().amax(dim=1).double().cpu().numpy(), ids.cpu().numpy()
    reach, largest = np.full(segments, 2.0**-100), np.full(segments, 2.0**-100)
    np.add.at(reach, at, tops)
    np.maximum.at(largest, at, tops)
    return (np.maximum(np.floor(np.log2(reach)) - 22, np.floor(np.log2(largest)) - 20) + 127).astype(np.int32)


def reference(x: dict[str, Any]) -> Any:
    """In float64."""
    values = x["values"]
    return values.new_zeros((x["segments"], values.shape[1])).index_add_(0, x["ids"], values)


def sorted_fold(x: dict[str, Any]) -> Any:
    from ..blocks.segment.kernels import sum_segments
    from ..blocks.sort.kernels import stable_sort

    return sum_segments(x["values"], stable_sort(x["ids"], x["segments"]))


def radix_fold(x: dict[str, Any]) -> Any:
    """The same fold after torch's radix sort."""
    from ..blocks.segment.kernels import sum_segments
    from ..blocks.sort.kernels import radix_sort

    return sum_segments(x["values"], radix_sort(x["ids"], x["segments"]))


def exact(x: dict[str, Any]) -> Any:
    """Atomics whose additions do not round; two passes over the values."""
    from ..blocks.exact.kernels import exact_sum

    return exact_sum(x["values"], x["ids"], x["segments"])


def exact_certified(x: dict[str, Any]) -> Any:
    """Atomics whose additions do not round; one pass, with a certificate."""
    from ..blocks.exact.kernels import certified_sum

    return certified_sum(x["values"], x["ids"], x["segments"], x["exponents"])[0]


def atomic(x: dict[str, Any]) -> Any:
    from ..blocks.segment.kernels import sum_atomically

    return sum_atomically(x["values"], x["ids"], x["segments"])


index_add = _declare("segment/index_add", "index_add_ adds the rows of one id in arrival order")
index_put = _declare("segment/index_put", "")  # index_put_ with accumulate sorts by itself, in both modes


def _index_add(x: dict[str, Any]) -> Any:
    values = x["values"]
    return values.new_zeros((x["segments"], values.shape[1])).index_add_(0, x["ids"], values)


def _index_put(x: dict[str, Any]) -> Any:
    values = x["values"]
    return values.new_zeros((x["segments"], values.shape[1])).index_put_((x["ids"],), values, accumulate=True)


index_add.suites(pr=("typical", "edge-zipf"))
index_put.suites(pr=("small",))
index_add.default("torch.index_add_")(_index_add)
index_add.stock_deterministic("torch.index_add_.deterministic")(_index_add)
index_put.default("torch.index_put_")(_index_put)
index_put.stock_deterministic("torch.index_put_.deterministic")(_index_put)
