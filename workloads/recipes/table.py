"""Which kernel each op of a recipe uses in each arm: one table, nothing chosen elsewhere and nothing fallen back to.

Ops of ``moe`` and ``embedding`` have the names of their ``ops.py``; a ``torch`` name that stands in several arms is the same
call, under the flags of the arm's mode. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping

from .sizes import Size

ARMS = ("default", "deterministic", "champion")

# op: (default, deterministic, champion)
TABLE: Mapping[str, tuple[str, str, str]] = {
    "embedding": ("torch.embedding", "torch.embedding", "triton.sorted_fold"),
    "norm": ("torch.rms_norm", "torch.rms_norm", "torch.rms_norm"),
    "linear": ("torch.linear", "torch.linear", "torch.linear"),
    "attention": ("torch.sdpa", "torch.sdpa", "torch.sdpa"),
    "mlp": ("torch.silu_mul", "torch.silu_mul", "torch.silu_mul"),
    "router_topk": ("torch.topk", "torch.sort.stable", "triton.argmax_rounds"),
    "routing_map": ("torch.scatter", "torch.index_put_", "triton.comparison"),
    "tokens_per_expert": ("torch.histc", "torch.scatter_.sum", "triton.histogram"),
    "permute": ("torch.index_select", "torch.index_select", "triton.counting_sort"),
    "experts": ("torch.grouped_mm", "torch.grouped_mm", "torch.grouped_mm"),
    "combine": ("torch.scatter_add_", "torch.scatter_add_.deterministic", "triton.gather"),
    "conv": ("torch.conv1d", "torch.conv1d", "torch.conv1d"),
    "scan": ("torch.chunked_scan", "torch.chunked_scan", "torch.chunked_scan"),
    "cross_entropy": ("torch.cross_entropy", "torch.cross_entropy", "torch.cross_entropy"),
    "grad_norm": ("torch._foreach_norm",) * 3,
    "optimizer": ("torch._fused_adamw_",) * 3,
}

ALWAYS = ("embedding", "norm", "linear", "cross_entropy", "grad_norm", "optimizer")
OPS_OF = {
    "attention": ("attention",),
    "state_space": ("conv", "scan"),
    "mlp": ("mlp",),
    "moe": ("router_topk", "routing_map", "tokens_per_expert", "permute", "experts", "combine"),
}
# what an arm may use instead, when asked for by name: op: {kernel: arms}
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # attention/dropin.py; heads of 64 or 128. `run --recipe` asks for two_pass: no package, no bound
    "attention": dict.fromkeys(("two_pass", "triton_exact", "fa4_exact"), ("champion",)),
}


def kernels_of(size: Size, arm: str, chosen: Mapping[str, str] | None = None) -> dict[str, str]:
    """Op -> kernel, for the ops that a recipe of this size has. ``chosen`` replaces some, by name.

    Raises ``ValueError`` for an arm, an op or a kernel that is none, or that the arm may not use.
    """
    if arm not in ARMS:
        raise ValueError(f"no arm {arm!r}: arms are {', '.join(ARMS)}")
    column = ARMS.index(arm)
    wanted = [*ALWAYS, *(op for part in dict.fromkeys((*size.mixers, size.feed_forward)) for op in OPS_OF[part])]
    kernels = {op: row[column] for op, row in TABLE.items() if op in wanted}
    for op, kernel in (chosen or {}).items():
        if op not in kernels:
            raise ValueError(f"this recipe has no op {op!r}: it has {', '.join(kernels)}")
        optional = [name for name, arms in OPTIONS.get(op, {}).items() if arm in arms]
        possible = list(dict.fromkeys((kernels[op], *optional)))
        if kernel not in possible:
            raise ValueError(f"arm {arm} has no kernel {kernel!r} for {op}: it has {', '.join(possible)}")
        kernels[op] = kernel
    return kernels
