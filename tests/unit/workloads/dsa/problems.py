"""Tiny problems for the interpreter, which has no bf16 products: the same cases in f16."""

import torch

from perfgate import Case, discover

op = discover.load().op("dsa/backward")
kernels = discover.module("dsa.backward.kernels")
problem = discover.module("dsa.backward.problem")
stock = discover.module("dsa.backward.stock")
TINY = {"queries": 3, "keys": 64, "heads": 16, "dim": 64, "dim_v": 64, "topk": 40, "pattern": "random"}
NAMES = ("q", "kv", "topk", "topk_length", "out", "lse", "dout", "scale")


def made(device, generator, **changes):
    """The inputs of a tiny case with ``changes``, in f16; the forward's results belong to the f16 values."""
    case = Case("test", {**TINY, **changes})
    x = problem.make(case, device, generator)
    x = {name: value.half() if is_(value, torch.bfloat16) else value for name, value in x.items()}
    return forwarded(x)


def forwarded(x):
    """The inputs with the forward's results anew."""
    rows = stock.chosen_rows(x["topk"], x["topk_length"], x["kv"].shape[0])
    out, lse = stock.forward(x["q"], x["kv"], rows, x["dout"].shape[2], x["scale"])
    return {**x, "out": out, "lse": lse}


def is_(value, dtype):
    return isinstance(value, torch.Tensor) and value.dtype == dtype


def in_float64(x):
    return {name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for name, value in x.items()}  # fmt: skip


def arguments(x):
    return {name: x[name] for name in NAMES}


def run(name, x):
    """The implementation's (dq, dkv)."""
    return next(one for one in op.implementations if one.name == name).run(x)


def error(actual, expected):
    """Relative L2 error."""
    size = float(expected.norm())
    return float((actual.double() - expected).norm()) / (size or 1.0)


def same(one, other):
    return torch.equal(one.view(torch.int16), other.view(torch.int16))
