"""Can flash-attn-4's SM90 kernels, as shipped and hooked, run here? Says why not, without importing torch or flash-attn-4.

The hook reaches into one method of one release, so nothing but the release it was written for will do: the versions are
compared exactly, and the sources of the methods it builds on are hashed. Anything else is unsupported, never a fallback.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from . import shares

RULES = ("atomic", "ordered", "exact")
VERSIONS = {"flash-attn-4": "4.0.0b36", "quack-kernels": "0.6.5", "nvidia-cutlass-dsl": "4.8.1"}
ALSO = ("apache-tvm-ffi", "einops", "torch-c-dlpack-ext", "cuda-bindings")
INSTALL = "pip install 'perfgate[peers]'"
DIMS = (64, 128)
SOURCES = {
    "flash_attn/cute/flash_bwd_sm90.py": (
        "FlashAttentionBackwardSm90.__init__",
        "FlashAttentionBackwardSm90._setup_attributes",
        "FlashAttentionBackwardSm90._get_tiled_mma",
        "FlashAttentionBackwardSm90.__call__",
        "FlashAttentionBackwardSm90.kernel",
        "FlashAttentionBackwardSm90.mma",
        "FlashAttentionBackwardSm90.mma_one_m_block",
        "FlashAttentionBackwardSm90.epilogue_dKV",
        "FlashAttentionBackwardSm90.dQaccum_store",
    ),
    "flash_attn/cute/flash_fwd.py": ("FlashAttentionForwardBase.__init__", "FlashAttentionForwardBase._setup_attributes"),
    "flash_attn/cute/flash_fwd_sm90.py": (
        "FlashAttentionForwardSm90.__init__",
        "FlashAttentionForwardSm90.__call__",
        "FlashAttentionForwardSm90.kernel",
        "FlashAttentionForwardSm90.load",
    ),
    "flash_attn/cute/interface.py": (
        "_tile_size_fwd_sm90",
        "_get_fwd_config",
        "_tile_size_bwd_sm90",
        "_resolve_causal_local_window",
        "_flash_attn_fwd",
        "_flash_attn_bwd",
    ),
    "flash_attn/cute/utils.py": ("AuxData",),
    "flash_attn/cute/cache_utils.py": ("get_jit_cache",),
    "flash_attn/cute/pack_gqa.py": ("pack_gqa_layout",),
    "flash_attn/cute/tile_scheduler.py": (
        "SingleTileScheduler.create",
        "SingleTileScheduler.get_current_work",
        "SingleTileScheduler.initial_work_tile_info",
        "SingleTileLPTScheduler.create",
        "SingleTileLPTScheduler.get_current_work",
        "SingleTileLPTScheduler.initial_work_tile_info",
    ),
    "quack/layout_utils.py": ("mma_partition_C_vec", "reshape_acc_to_mn", "convert_layout_acc_mn"),
    "quack/sm90_utils.py": ("gemm_zero_init", "gemm_w_idx"),
}
DIGEST = "051a94cb022b9e0a"


def unsupported(
    device: str, *, dim: int, heads: int, kv_heads: int, q_len: int, kv_len: int, causal: bool, window: int | None, rule: str
) -> str:
    """Why attention of heads × q_len × dim against kv_heads × kv_len × dim can't run so on ``device``; "" if it can.

    ``window`` is the number of keys a query sees at most and implies ``causal``.
    """
    if rule not in RULES:
        return f"rule {rule!r} is none of {', '.join(RULES)}"
    if dim not in DIMS:
        return f"head dimension {dim}: the hooks of flash-attn-4 take {' and '.join(map(str, DIMS))}"
    if min(heads, kv_heads, q_len, kv_len) < 1 or heads % kv_heads:
        return f"{heads} query heads of {q_len} rows over {kv_heads} kv heads of {kv_len}: none, or no whole groups"
    if window is not None and not (causal and window >= 1):
        return f"window {window}: at least 1 key, and causal"
    return packages() or card(device)


@lru_cache(maxsize=1)
def packages() -> str:
    """Why the installed packages won't do; "" if they are the ones the hook was written for."""
    found = {name: _version(name) for name in (*VERSIONS, *ALSO)}
    wanted = [f"{name}=={version}" for name, version in VERSIONS.items()]
    missing = [name for name, version in found.items() if not version]
    if missing:
        return f"needs {', '.join(wanted)} ({INSTALL}); not installed: {', '.join(missing)}"
    wrong = [f"{name} {found[name]}" for name, version in VERSIONS.items() if found[name] != version]
    if wrong:
        return f"needs {', '.join(wanted)} ({INSTALL}); found {', '.join(wrong)}"
    try:
        seen = digest()
    except (OSError, LookupError, SyntaxError) as problem:
        return f"flash-attn-4 {found['flash-attn-4']} does not hold what the hook builds on: {problem}"
    if seen != DIGEST:
        return f"the sources of flash-attn-4 or quack-kernels are not those of {', '.join(wanted)} ({seen}, not {DIGEST})"
    return ""


@lru_cache(maxsize=16)
def card(device: str) -> str:
    """Why ``device`` won't do; "" for Hopper."""
    if not device.startswith("cuda"):
        return f"needs an NVIDIA Hopper GPU, not {device!r}"
    import torch

    if not torch.cuda.is_available():
        return "needs an NVIDIA Hopper GPU: torch finds none"
    major, minor = torch.cuda.get_device_capability(torch.device(device))
    return "" if major == 9 else f"needs compute capability 9.x, found {major}.{minor}"


def digest() -> str:
    """First 16 hex digits of the SHA-256 of the sources that the hook builds on. ``LookupError`` if one is not there."""
    state = hashlib.sha256()
    for path, names in SOURCES.items():
        text = _located(path).read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.splitlines()
        for name in names:
            first, last = _place(tree, name, path)
            state.update("\n".join((f"{path}:{name}", *lines[first - 1 : last], "")).encode())
    return state.hexdigest()[:16]


def surveys(dim: int, group: int) -> bool:
    """Whether the forward can survey K and V: its Q comes by TMA, which leaves warps free, if whole groups fill a block."""
    return shares.TILES[dim] % group == 0


def survey_bytes(batch: int, heads: int, kv_heads: int, q_len: int, dim: int) -> int:
    """Of the extents that the forward leaves for the backward of "exact"; 0 where it does not survey."""
    group = heads // kv_heads
    return 8 * batch * kv_heads * shares.parts(q_len, group, dim) if surveys(dim, group) else 0


def workspace(rule: str, *, batch: int, heads: int, kv_heads: int, q_len: int, kv_len: int, dim: int) -> int:
    """Bytes of the backward beyond its inputs and gradients: float32 sums, numbers per row, semaphores or room aside.

    Rows are padded to whole tiles of queries: 128 at head dimension 64, else 64 (as shipped 80 in full attention: 2 % more at
    most from 3200 rows on). With "exact" K and V are surveyed by the forward where it can (:func:`surveys`).
    """
    tile = 128 if dim == 64 else 64
    rows = -(-q_len // tile) * tile
    tiles = -(-kv_len // 128)
    total = 4 * batch * heads * rows * (dim + 2)
    shared = kv_heads < heads
    if shared:
        total += 2 * 4 * batch * kv_heads * tiles * 128 * dim
    if rule == "ordered":
        total += 4 * batch * (heads * rows // 64 + 4 * kv_heads * tiles * shared)
    if rule == "exact":
        if not surveys(dim, heads // kv_heads):
            total += 4 * batch * (2 * 64 * kv_heads + heads * rows)
        if shared:
            total += 4 * batch * (2 * heads * tiles * 128 * dim + 2 * tiles * (heads + kv_heads))
    return total


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _located(path: str) -> Path:
    """The file as the import system would find it, without importing its package."""
    for folder in sys.path:
        if (candidate := Path(folder or ".") / path).is_file():
            return candidate
    raise LookupError(f"{path} is on no import path")


def _place(tree: ast.Module, name: str, path: str) -> tuple[int, int]:
    """First and last line of the function, class or method ``name``."""
    node: ast.AST = tree
    for part in name.split("."):
        inside = [child for child in ast.iter_child_nodes(node) if getattr(child, "name", "") == part]
        if not inside:
            raise LookupError(f"{path} has no {name}")
        node = inside[-1]
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.end_lineno is None:
        raise LookupError(f"{name} in {path} is neither a function nor a class")
    return node.lineno, node.end_lineno
