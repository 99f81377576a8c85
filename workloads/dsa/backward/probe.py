"""What this machine can run: one probe for ops, dispatch and the tests' skips; no torch or triton at import."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from perfgate import Case

from .shape import tile_of

OLDEST_TRITON = (3, 6)  # tuples of tiles as loop-carried values
MAJOR = 9  # the only one that the kernels were checked against float64 on
MOST_STOCK_QUERIES = 4096  # beyond, the stock path takes minutes a replay


@lru_cache(maxsize=1)
def triton_version() -> tuple[int, int] | None:
    """(major, minor) of the installed Triton, ``None`` if there is none."""
    try:
        major, minor = version("triton").split(".")[:2]
    except PackageNotFoundError:
        return None
    return int(major), int(minor)


def shared_memory(heads: int, dim: int, dim_v: int) -> int:
    """Bytes that one program needs, of 128 kv rows at a time.

    q, dout and dS in 16 bits; beside them P and 64 columns of contributions in f32, or two times 128 columns of the rows.
    """
    tile = tile_of(heads)
    return 2 * tile * (dim + dim_v + 128) + max(2 * 128 * tile + 128 * 64 * 4, 2 * 2 * 128 * 128)


def triton_runs(case: Case, device: str) -> str:
    """Why the Triton kernels can't compute ``case`` on ``device`` (Triton, capability, shapes, shared memory), or ""."""
    import torch

    found = triton_version()
    if found is None or found < OLDEST_TRITON:
        have = "none is installed" if found is None else f"this is {found[0]}.{found[1]}"
        return f"needs Triton {OLDEST_TRITON[0]}.{OLDEST_TRITON[1]} or newer: {have}"
    dim_v = case.get("dim_v", 512)
    if case.dim % 64 or dim_v % 64 or dim_v > case.dim:
        return f"heads of {case.dim} with values of {dim_v}: both must be multiples of 64, values not wider"
    if not device.startswith("cuda"):
        return "Triton kernels need a GPU; on a CPU only their interpreter tests run them"
    major, minor = torch.cuda.get_device_capability(device)
    if major != MAJOR:
        return f"checked against float64 on compute capability {MAJOR}.x only: this card has {major}.{minor}"
    room: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined]
    need = shared_memory(case.heads, case.dim, dim_v)
    if need > room:
        return f"one program needs {need} bytes of shared memory, the card has {room}"
    return ""


def input_bytes(case: Case) -> int:
    """q, out, dout and what is returned, kv and dkv, chosen rows and lse."""
    per_query = case.heads * (2 * case.dim + 2 * case.get("dim_v", 512)) * 2 + case.heads * 4 + case.topk * 4
    return int(case.queries * per_query + 2 * case.keys * case.dim * 2)


def fits_memory(case: Case, device: str, workspace: Callable[[Case], int]) -> str:
    """That inputs, outputs and ``workspace`` exceed the card, with the formula's figures (nothing is launched then), or ""."""
    import torch

    try:
        need = workspace(case)
    except MemoryError as error:
        return str(error)
    total = torch.cuda.get_device_properties(device).total_memory
    if need + input_bytes(case) > total:
        return f"needs a workspace of {need} bytes beside {input_bytes(case)} of inputs and outputs, the card has {total}"
    return ""


def stock_is_bearable(case: Case, _device: str) -> str:
    """That the stock path would take minutes, or ""."""
    if case.queries > MOST_STOCK_QUERIES:
        return (
            f"the stock path is measured up to {MOST_STOCK_QUERIES} queries: beyond, one call takes seconds and one run an hour"
        )
    return ""
