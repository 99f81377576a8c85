"""dsa/backward: the gradients of sparse-MLA attention; dkv collects from every query that chose the row."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

from ..cudnn import forms, probe
from . import problem, stock
from .probe import fits_memory, stock_is_bearable, triton_runs
from .shape import WORKSPACE, exact_bytes, queries_at_a_time, sorted_bytes, sums_bytes

TENSORS = ("q", "kv", "topk", "topk_length", "out", "lse", "dout", "scale")


def _bytes(case: Case, _phase: str) -> int:
    """q, out, dout read and dq written once, kv and dkv once, lse and the chosen rows 4 bytes each."""
    per_query = case.heads * (2 * case.dim + 2 * case.get("dim_v", problem.DIM_V)) * 2 + case.heads * 4 + case.topk * 4
    return int(case.queries * per_query + 2 * case.keys * case.dim * 2)


def _flops(case: Case, _phase: str) -> int:
    """Five products over every chosen row: scores, dP, dq and two for dkv; entries that choose none are counted too."""
    return int(2 * case.queries * case.heads * case.topk * (3 * case.dim + 2 * case.get("dim_v", problem.DIM_V)))


op = Op(
    "dsa/backward",
    kind="triton",
    racy="the contributions of all queries to one kv row are added by atomics in arrival order",
    control_case="small",  # a millisecond, and every replay of the racy forms differed
    max_error=2e-2,
    bytes_moved=_bytes,
    flops=_flops,
    tests=(
        *(
            f"tests/unit/workloads/dsa/test_{name}.py"
            for name in ("backward", "backward_edges", "exact", "sorted", "quanta", "ops", "compiles_dsa")
        ),
        *(
            f"tests/unit/workloads/dsa/test_cudnn_{name}.py"
            for name in ("kernels", "probe", "quantum", "reach", "split", "store")
        ),
        "tests/gpu/test_dsa.py",
        "tests/gpu/test_dsa_cudnn.py",
    ),
)
op.cases(
    smoke=dict(queries=8, keys=64, heads=16, dim=64, dim_v=64, topk=32, pattern="random"),
    small=dict(queries=513, keys=4096, heads=64, dim=512, topk=512, pattern="random"),
    typical=dict(queries=16384, keys=16384, heads=64, dim=512, topk=2048, pattern="random"),
    large=dict(queries=16384, keys=16384, heads=128, dim=576, topk=2048, pattern="random"),
    local=dict(queries=16384, keys=16384, heads=64, dim=512, topk=2048, pattern="local"),
    zipf=dict(queries=4096, keys=16384, heads=64, dim=512, topk=2048, pattern="zipf"),
    middle=dict(queries=4096, keys=4096, heads=64, dim=512, topk=512, pattern="random"),
    rope=dict(queries=4096, keys=16384, heads=64, dim=576, topk=2048, pattern="random"),
    heads16=dict(queries=4096, keys=16384, heads=16, dim=576, topk=2048, pattern="random"),
    heads128=dict(queries=4096, keys=16384, heads=128, dim=512, topk=2048, pattern="random"),
    context512k=dict(queries=4096, keys=524288, heads=64, dim=576, topk=2048, pattern="random"),
    edge_64=dict(queries=64, keys=1024, heads=64, dim=512, topk=128, pattern="random"),
    edge_128=dict(queries=128, keys=1024, heads=128, dim=576, topk=128, pattern="zipf"),
    edge_129=dict(queries=129, keys=2048, heads=16, dim=512, topk=512, pattern="local"),
    edge_257=dict(queries=257, keys=4096, heads=64, dim=576, topk=512, pattern="local"),
    edge_holes=dict(queries=257, keys=4096, heads=64, dim=512, topk=512, pattern="random", holes=0.3),
    edge_no_rows=dict(queries=129, keys=1024, heads=128, dim=512, topk=128, pattern="random", empty=0.5, holes=0.1),
    edge_duplicates=dict(queries=257, keys=1024, heads=64, dim=576, topk=512, pattern="random", duplicates=True),
    edge_lengths=dict(queries=513, keys=4096, heads=64, dim=512, topk=512, pattern="random", lengths=True),
    edge_lengths_holes=dict(
        queries=128, keys=1024, heads=16, dim=576, topk=512, pattern="zipf", lengths=True, holes=0.2, empty=0.2
    ),
    edge_hot_row=dict(queries=4096, keys=4096, heads=64, dim=512, topk=128, pattern="random", hot=True),
    edge_little_workspace=dict(
        queries=4096, keys=16384, heads=128, dim=576, topk=128, pattern="random", max_workspace=192 * 2**20
    ),
)
op.suites(pr=("small",))
op.inputs(problem.make)


@op.reference
def reference(x: dict[str, Any]) -> Any:
    """In float64, a few queries at a time."""
    import torch

    return stock.backward(x, torch.float64)


def _at_a_time(case: Case) -> int:
    limit = case.get("max_workspace", WORKSPACE)
    return queries_at_a_time(case.queries, case.keys, case.topk, case.dim, limit)


def _sorted_workspace(case: Case) -> int:
    return sorted_bytes(_at_a_time(case), case.queries, case.keys, case.topk, case.dim, bool(case.get("lengths")))


def _atomic_workspace(case: Case) -> int:
    return sums_bytes(case.keys, case.dim)


def _exact_workspace(case: Case) -> int:
    return exact_bytes(case.keys, case.dim)


def _arguments(x: dict[str, Any]) -> dict[str, Any]:
    return {name: x[name] for name in TENSORS}


def triton_atomic(x: dict[str, Any]) -> Any:
    from .kernels import backward_atomic

    return backward_atomic(**_arguments(x))


def triton_exact(x: dict[str, Any]) -> Any:
    """Atomics whose additions do not round, so that their order does not show."""
    from .kernels import backward_exact

    return backward_exact(**_arguments(x), reach=x["reach"])[:2]


def sorted_segment(x: dict[str, Any]) -> Any:
    """Contributions staged, sorted by kv row, folded in one order."""
    from .kernels import backward_sorted

    return backward_sorted(**_arguments(x), max_workspace=x["max_workspace"])


def index_add(x: dict[str, Any]) -> Any:
    """Plain torch in f32: contributions of a few queries at a time, added by ``index_add_``."""
    import torch

    return stock.backward(x, torch.float32)


def _triton(workspace: Any) -> dict[str, Any]:
    """How a Triton form is registered: what it allocates, and that the card must run it and hold it."""

    def supports(case: Case, device: str) -> str:
        return triton_runs(case, device) or fits_memory(case, device, workspace)

    return {"backend": "triton", "workspace": workspace, "supports": supports}


def _cudnn(run: Any, workspace: Any, supports: Any) -> tuple[dict[str, Any], Any]:
    return {"workspace": workspace, "supports": supports}, run


FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "cudnn": _cudnn(forms.run_cudnn, forms.workspace_cudnn, forms.supports_cudnn),
    "exact": _cudnn(forms.run_exact, forms.workspace_exact, forms.supports_exact),
    "split_slice": _cudnn(forms.run_split_slice, forms.workspace_split_slice, forms.supports_split_slice),
    "triton_atomic": (_triton(_atomic_workspace), triton_atomic),
    "triton_exact": (_triton(_exact_workspace), triton_exact),
    "sorted_segment": (_triton(_sorted_workspace), sorted_segment),
}


def _register(register: Any, *names: str) -> None:
    for name in names:
        options, run = FORMS[name]
        register(name, **options)(run)


# what users run, and the fastest form that keeps the contract, follow from what is installed; all forms are always declared
if probe.installed():
    _register(op.default, "cudnn")
    _register(op.champion, "exact")
    _register(op.contender, "triton_atomic")
    _register(op.candidate, "triton_exact", "sorted_segment", "split_slice")
else:
    _register(op.default, "triton_atomic")
    _register(op.champion, "triton_exact")
    _register(op.contender, "cudnn")
    _register(op.candidate, "sorted_segment", "exact", "split_slice")
op.stock_deterministic("index_add", supports=stock_is_bearable)(index_add)
