"""The files that ``perfgate new-op`` writes: an op that runs as it stands, and its test."""

from __future__ import annotations

from pathlib import Path

from perfgate.errors import UsageError
from perfgate.registry import Op

OPS = '''"""{name}: replace the bodies below; the worker does timing, profiling, NVTX and hashing."""

from __future__ import annotations

from perfgate import Op

op = Op("{name}", kind="torch-op", racy="index_add_ adds rows of one bucket in arrival order", tests=("{test}",))
op.cases(
    smoke=dict(rows=256, columns=32, buckets=16),
    typical=dict(rows=65536, columns=1024, buckets=4096),
    edge_one_row=dict(rows=1, columns=32, buckets=16),
)


@op.inputs
def inputs(case, device, generator):
    """Rows [rows, columns] f32 and the bucket of each, [rows] int64."""
    import torch

    rows = torch.randn(case.rows, case.columns, device=device, generator=generator)
    bucket = torch.randint(case.buckets, (case.rows,), device=device, generator=generator)
    return {{"rows": rows, "bucket": bucket, "buckets": case.buckets}}


@op.reference
def reference(x):
    """Slow and obvious; the floating inputs come in float64."""
    out = x["rows"].new_zeros(x["buckets"], x["rows"].shape[1])
    return out.index_put((x["bucket"],), x["rows"], accumulate=True)


@op.default("torch.index_add")
def index_add(x):
    """What users run today."""
    out = x["rows"].new_zeros(x["buckets"], x["rows"].shape[1])
    return out.index_add(0, x["bucket"], x["rows"])


@op.stock_deterministic("torch.index_add_det")
def index_add_deterministic(x):
    """What they get with torch.use_deterministic_algorithms(True), which the worker sets for this arm."""
    return index_add(x)


@op.candidate("torch.sorted_segments", workspace=lambda case: case.rows * (case.columns * 4 + 16))
def sorted_segments(x):
    """Sorts the rows by bucket (stable) and adds each bucket's rows in that order."""
    import torch

    bucket, order = torch.sort(x["bucket"], stable=True)
    lengths = torch.bincount(bucket, minlength=x["buckets"])
    return torch.segment_reduce(x["rows"][order], "sum", lengths=lengths, axis=0, initial=0.0)
'''

TEST = '''"""{name}: values against float64, and equal bits in every replay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from perfgate.discover import load

OP = load([str(Path(__file__).resolve().parent / "{folder}")]).op("{name}")
ON_CPU = [one for one in OP.implementations if one.backend == "torch"]
DETERMINISTIC = [one for one in ON_CPU if one.mode == "deterministic"]


@pytest.mark.parametrize("implementation", ON_CPU, ids=lambda one: one.name)
@pytest.mark.parametrize("case", ["smoke", "edge-one-row"])
def test_agrees_with_float64(implementation, case):
    x = OP.make_inputs(OP.case(case), "cpu", torch.Generator().manual_seed(0))
    exact = OP.compute_reference({{**x, "rows": x["rows"].double()}})

    assert torch.allclose(implementation.run(x).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", DETERMINISTIC, ids=lambda one: one.name)
def test_gives_the_same_bits_again(implementation):
    x = OP.make_inputs(OP.case("smoke"), "cpu", torch.Generator().manual_seed(0))
    first = implementation.run(x)

    assert all(torch.equal(first.view(torch.int32), implementation.run(x).view(torch.int32)) for _ in range(3))
'''


def write_skeleton(name: str, into: Path, tests: Path) -> tuple[Path, Path]:
    """Writes ``into/<family>/<op>/ops.py`` and ``tests/test_<family>_<op>.py``; returns both.

    Raises :class:`UsageError` for a bad name, where a file is there already, or where nothing can be written.
    """
    Op(name)  # checks the name
    ops = into / name / "ops.py"
    test = tests / f"test_{name.replace('/', '_')}.py"
    for file in (ops, test):
        if file.exists():
            raise UsageError(f"{file} is there already", "choose another name, or remove it: nothing is overwritten")
    folder = _relative(into.resolve(), tests.resolve())
    try:
        for file, text in ((ops, OPS), (test, TEST)):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.format(name=name, test=test.as_posix(), folder=folder), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't write {file}: {error.strerror}", "choose another --into or --tests") from error
    return ops, test


def _relative(target: Path, start: Path) -> str:
    import os

    return Path(os.path.relpath(target, start)).as_posix()
