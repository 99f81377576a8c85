"""attention/fwd_bwd and attention/bwd: gradients of attention, by stock kernels, in Triton, and by flash-attn-4."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

from perfgate import Case, Op

from .. import support
from ..fa4 import probe
from ..shape import backward_bytes, statistics_bytes, visible_pairs


def _rule(case: Case) -> dict[str, Any]:
    return {"causal": not case.get("full", False), "window": case.get("window")}


def _sizes(case: Case) -> dict[str, Any]:
    return {
        "heads": case.heads,
        "kv_heads": case.get("kv_heads", case.heads),
        "q_len": case.seq,
        "kv_len": case.get("kv_len", case.seq),
        "dim": case.dim,
    }


def _bytes(case: Case, phase: str) -> int:
    """bf16 q, k, v in, out written (step: read again), and of the backward out's gradient in, dq, dk, dv out; each once."""
    s = _sizes(case)
    queries, keys = (case.batch * s[h] * s[n] * case.dim * 2 for h, n in (("heads", "q_len"), ("kv_heads", "kv_len")))
    backward = 4 * queries + 4 * keys
    return int(backward + (2 * queries + 2 * keys if phase == "step" else 0))


def _flops(case: Case, phase: str) -> int:
    """Five products of the backward, seven with the forward, over the pairs that the mask lets through."""
    s = _sizes(case)
    product = 2 * case.batch * s["heads"] * visible_pairs(s["q_len"], s["kv_len"], **_rule(case)) * case.dim
    return int(product * {"bwd": 5, "step": 7}[phase])


CASES: dict[str, dict[str, Any]] = dict(
    smoke=dict(batch=1, heads=2, seq=64, dim=64),
    small=dict(batch=2, heads=16, seq=1024, dim=64),
    typical=dict(batch=2, heads=16, seq=4096, dim=128),
    large=dict(batch=1, heads=16, seq=16384, dim=128),
    edge_d64=dict(batch=2, heads=16, seq=4096, dim=64),
    edge_full=dict(batch=2, heads=16, seq=4096, dim=128, full=True),
    edge_gqa4=dict(batch=2, heads=16, seq=4096, dim=128, kv_heads=4),
    edge_window=dict(batch=1, heads=16, seq=8192, dim=128, window=1024),
)
ONLY_BACKWARD: dict[str, dict[str, Any]] = dict(
    edge_short=dict(batch=16, heads=16, seq=512, dim=128),
    edge_gqa8=dict(batch=2, heads=32, seq=2048, dim=128, kv_heads=4),
    edge_129=dict(batch=4, heads=16, seq=129, dim=128),
    edge_257=dict(batch=4, heads=16, seq=257, dim=64, kv_heads=4),
    edge_cross=dict(batch=2, heads=16, seq=1024, dim=128, kv_len=4096, full=True),
)
SHARED: dict[str, Any] = dict(
    kind="triton",
    racy="cuDNN's backward, which SDPA picks, adds dQ in arrival order",
    control_case="typical",
    gradients=("q", "k", "v"),
    max_error=2e-2,
    bytes_moved=_bytes,
    flops=_flops,
    tests=(
        "tests/unit/workloads/test_attention.py",
        "tests/unit/workloads/test_attention_bound.py",
        "tests/unit/workloads/test_attention_order.py",
        "tests/unit/workloads/test_attention_memory.py",
        "tests/unit/workloads/test_attention_roles.py",
        "tests/unit/workloads/test_attention_compiles.py",
        "tests/gpu/test_attention.py",
    ),
)
both = Op("attention/fwd_bwd", phases=("step",), **SHARED)
both.cases(**CASES)
backward = Op("attention/bwd", phases=("bwd",), **SHARED)
backward.cases(**CASES, **ONLY_BACKWARD)
for one in (both, backward):
    one.suites(pr=("typical",))


def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Inputs q [B, Hq, Sq, D], k and v [B, Hkv, Sk, D], bf16, what the mask is, and the mask itself where torch needs one."""
    import torch

    from ..plain import mask

    s, rule = _sizes(case), _rule(case)

    def made(heads: int, length: int) -> Any:
        shape = (case.batch, heads, length, case.dim)
        return torch.randn(shape, device=device, generator=generator).to(torch.bfloat16)

    q, k, v = (made(s[h], s[n]) for h, n in (("heads", "q_len"), ("kv_heads", "kv_len"), ("kv_heads", "kv_len")))
    needs_mask = rule["window"] is not None
    drawn = mask(0, s["q_len"], s["q_len"], s["kv_len"], **rule, device=device) if needs_mask else None
    return {"q": q, "k": k, "v": v, "mask": drawn, "scale": case.dim**-0.5, **rule}


def reference(x: dict[str, Any]) -> Any:
    """The whole score matrix of one head at a time."""
    from ..plain import attention

    return attention(x["q"], x["k"], x["v"], causal=x["causal"], scale=x["scale"], window=x["window"])


def _peers_are_installed() -> bool:
    """Whether flash-attn-4 and what it needs are there in the versions that work; their sources are not looked at yet."""

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return ""

    return all(version(name) == made for name, made in probe.VERSIONS.items()) and all(map(version, probe.ALSO))


def _stock(x: dict[str, Any], backend: str) -> Any:
    import torch.nn.functional as F  # noqa: N812
    from torch.nn.attention import SDPBackend, sdpa_kernel

    causal = x["causal"] and x["mask"] is None
    with sdpa_kernel(getattr(SDPBackend, backend)):
        grouped = x["q"].shape[1] != x["k"].shape[1]
        return F.scaled_dot_product_attention(
            x["q"], x["k"], x["v"], attn_mask=x["mask"], is_causal=causal, scale=x["scale"], enable_gqa=grouped
        )


def cudnn(x: dict[str, Any]) -> Any:
    """What F.scaled_dot_product_attention picks on Hopper; a window is given as a mask."""
    return _stock(x, "CUDNN_ATTENTION")


def torch_flash(x: dict[str, Any]) -> Any:
    """FlashAttention-2 in torch: dQ with atomics, or in order where determinism is on, as SDPA then picks it."""
    return _stock(x, "FLASH_ATTENTION")


def _on_a_gpu(_: Case, device: str) -> str:
    return "" if device.startswith("cuda") else "cuDNN and flash attention need a GPU"


def _flash_supports(case: Case, device: str) -> str:
    windowed = "F.scaled_dot_product_attention gives flash attention no window" if case.get("window") else ""
    return _on_a_gpu(case, device) or windowed


def _triton_supports(case: Case, device: str) -> str:
    return support.unsupported(device, **_sizes(case), **_rule(case))


def _workspace(phase: str, backward: Callable[[Case], int], kept: Callable[[Case], int]) -> Callable[[Case], int]:
    """Bytes beyond gradients: bwd finds the output, its gradient and what is kept there already, step makes them all.

    A step's peak is in its backward or, where that needs little, where the output's gradient is drawn: in f32, then rounded.
    """
    if phase == "bwd":
        return backward

    def workspace(case: Case) -> int:
        s = _sizes(case)
        out = 2 * case.batch * s["heads"] * s["q_len"] * case.dim
        gradients = out + 4 * case.batch * s["kv_heads"] * s["kv_len"] * case.dim
        return int(kept(case) + max(2 * out + backward(case), 4 * out - gradients))

    return workspace


def _triton(name: str, phase: str) -> dict[str, Any]:
    rule = name.removeprefix("triton_")

    def backward(case: Case) -> int:
        return backward_bytes(case.batch, _sizes(case)["heads"], case.seq, case.dim, rule)

    def kept(case: Case) -> int:
        s = _sizes(case)
        return statistics_bytes(case.batch, s["heads"], s["kv_heads"], s["q_len"], s["kv_len"], rule == "exact")

    return {"backend": "triton", "supports": _triton_supports, "workspace": _workspace(phase, backward, kept)}


def _engine(name: str) -> Callable[[dict[str, Any]], Any]:
    def run(x: dict[str, Any]) -> Any:
        from ..differentiable import attention

        return attention(x["q"], x["k"], x["v"], engine=name, causal=x["causal"], scale=x["scale"], window=x["window"])

    return run


def _flash4(rule: str, phase: str) -> dict[str, Any]:
    def supports(case: Case, device: str) -> str:
        return probe.unsupported(device, **_sizes(case), **_rule(case), rule=rule)

    def backward(case: Case) -> int:
        return probe.workspace(rule, batch=case.batch, **_sizes(case))

    def kept(case: Case) -> int:
        log_sum_exp = 4 * case.batch * case.heads * case.seq
        s = _sizes(case)
        surveyed = probe.survey_bytes(case.batch, s["heads"], s["kv_heads"], s["q_len"], s["dim"]) if rule == "exact" else 0
        return int(log_sum_exp + surveyed)

    return {"supports": supports, "workspace": _workspace(phase, backward, kept)}


for one, phase in ((both, "step"), (backward, "bwd")):
    one.inputs(inputs)
    one.reference(reference)
    one.default("cudnn", supports=_on_a_gpu)(cudnn)
    one.stock_deterministic("torch_flash_ordered", supports=_flash_supports)(torch_flash)
    one.contender("torch_flash", supports=_flash_supports)(torch_flash)
    # the fastest form that keeps the contract follows from what is installed; all forms are always declared
    register = (one.champion, one.candidate) if not _peers_are_installed() else (one.candidate, one.champion)
    register[0]("two_pass", **_triton("two_pass", phase))(_engine("two_pass"))  # needs no bound
    one.candidate("triton_exact", **_triton("triton_exact", phase))(_engine("triton_exact"))
    one.contender("triton_atomic", **_triton("triton_atomic", phase))(_engine("triton_atomic"))
    one.contender("fa4", **_flash4("atomic", phase))(_engine("fa4"))
    one.candidate("fa4_ordered", **_flash4("ordered", phase))(_engine("fa4_ordered"))
    register[1]("fa4_exact", **_flash4("exact", phase))(_engine("fa4_exact"))
