"""The three implementations of ``dsa/backward`` on cuDNN frontend's Hopper kernel, their workspace, and where they run.

torch, cudnn and cutlass are imported when one of them runs.
"""

from __future__ import annotations

from typing import Any

from perfgate import Case

from . import probe, shape, split, store


def run_cudnn(x: dict[str, Any]) -> Any:
    """The kernel as shipped: dkv by f32 atomics in arrival order."""
    from cudnn.deepseek_sparse_attention.sparse_attention_backward import sparse_attention_backward_wrapper

    store.behind_the_stock_wrapper()
    found = sparse_attention_backward_wrapper(
        x["q"], x["kv"], x["out"], x["dout"], x["lse"], x["sink"], x["topk"],
        softmax_scale=float(x["scale"]), topk_length=x["topk_length"],
    )  # fmt: skip
    return found["dq"], found["dkv"]


def run_exact(x: dict[str, Any]) -> Any:
    """Contributions rounded to a quantum per row, so that no addition rounds and order does not show; certified, else again."""
    import torch

    from . import hook, kernels, launch

    keys, dim = x["kv"].shape
    memory = torch.zeros((shape.sums_bytes(keys, dim) + shape.tables_bytes(keys)) // 4, device=x["q"].device)
    into = kernels.tables(memory, keys, dim)
    kernels.choose_quanta(into, x["topk"], x["topk_length"], x["reach"], keys, x["q"].shape[1])
    dq, dkv = torch.empty_like(x["q"]), torch.empty_like(x["kv"])
    launch.scatter(("exact",), hook.exact, x, launch.before(x), dq, memory)
    kernels.judge(into, dim)
    kernels.add_again(
        into, x["q"], x["kv"], x["topk"], x["topk_length"], x["out"], x["lse"], x["dout"], float(x["scale"])
    )  # fmt: skip
    launch.after(into.sums, dkv)
    return dq, dkv


def run_split_slice(x: dict[str, Any]) -> Any:
    """One accumulator per CTA that can run at once, each added to in the order of its CTAs, folded in order."""
    import torch

    from . import hook, kernels, launch

    queries, heads, dim = x["q"].shape
    keys, device = x["kv"].shape[0], x["q"].device
    ctas = queries * shape.tiles_of(heads)
    slices = split.slices_of(ctas, _concurrent(device), keys, dim, int(x["max_workspace"]))
    size = shape.rows(keys) * dim
    memory = torch.zeros(slices * size + 2 * shape.round_up(ctas, 64), device=device)
    order = memory[slices * size :].view(torch.int32)
    order[ctas : 2 * ctas] = kernels.turns(x["topk_length"], ctas, shape.tiles_of(heads), slices, device)
    dq, dkv = torch.empty_like(x["q"]), torch.empty_like(x["kv"])
    launch.scatter(("split", slices), lambda: hook.split(slices), x, launch.before(x), dq, memory)
    kernels.fold(memory, size, slices)
    launch.after(memory[:size], dkv)
    return dq, dkv


def _concurrent(device: Any) -> int:
    """CTAs that run at once: the kernel's shared memory lets one live on each SM."""
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _shapes(case: Case) -> tuple[int, int, int, int]:
    return case.queries, case.keys, case.heads, case.dim


def workspace_cudnn(case: Case) -> int:
    """Bytes beside the gradients: statistics, accumulator, gradient of the sink."""
    return shape.stock_bytes(*_shapes(case))


def workspace_exact(case: Case) -> int:
    """Stock's and 20 bytes per kv row."""
    return shape.exact_bytes(*_shapes(case))


def workspace_split_slice(case: Case, concurrent: int = 132) -> int:
    """Statistics, slices and turns, on a card of ``concurrent`` SMs."""
    queries, keys, heads, dim = _shapes(case)
    slices = split.slices_of(queries * shape.tiles_of(heads), concurrent, keys, dim, _slice_workspace(case))
    return split.split_bytes(queries, keys, heads, dim, slices)


def _slice_workspace(case: Case) -> int:
    return int(case.get("max_workspace", shape.SLICE_WORKSPACE))


def supports_cudnn(case: Case, device: str) -> str:
    """Why the stock kernel can't run ``case`` on ``device``, or ""."""
    return probe.missing(case, device)


def supports_exact(case: Case, device: str) -> str:
    """The same for the exact form, which needs the hooked method unchanged."""
    return probe.missing(case, device) or probe.changed()


def supports_split_slice(case: Case, device: str) -> str:
    """The same for slices; equal indices of one query and workspaces beyond the limit are refused too."""
    reason = probe.missing(case, device) or probe.changed()
    if not reason and case.get("duplicates"):
        reason = "one CTA may add two equal indices of its query in either order: slices don't fix that"
    if not reason:
        try:
            workspace_split_slice(case, _concurrent(device))
        except MemoryError as error:
            reason = str(error)
    return reason
