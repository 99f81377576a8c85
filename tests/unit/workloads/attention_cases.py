"""Inputs of attention for tests: f16 where Triton's interpreter runs (it has no bf16 products), bf16 on a GPU."""

from typing import NamedTuple

import torch

from perfgate import discover


class Problem(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad_out: torch.Tensor
    rule: dict

    def exact(self):
        """Output, log-sum-exp, dq, dk, dv in float64."""
        plain = discover.module("attention.plain")
        q, k, v, grad_out = (one.double() for one in self[:4])
        return (*plain.forward(q, k, v, **self.rule), *plain.backward(q, k, v, grad_out, **self.rule))

    def forward(self, survey=True):
        return discover.module("attention.forward.kernels").forward(*self[:3], **self.rule, survey=survey)

    def backward(self, out, lse, how, survey=None):
        kernels = discover.module("attention.backward.kernels")
        return kernels.backward(*self[:3], out, lse, self.grad_out, **self.rule, rule=how, survey=survey)


def problem(device, heads=1, kv_heads=1, q_len=40, kv_len=None, dim=64, causal=True, window=None, batch=1, seed=0):
    g = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if device == "cuda" else torch.float16

    def made(count, length):
        return torch.randn(batch, count, length, dim, generator=g).to(device, dtype)

    kv_len = kv_len or q_len
    tensors = made(heads, q_len), made(kv_heads, kv_len), made(kv_heads, kv_len), made(heads, q_len)
    return Problem(*tensors, {"causal": causal, "scale": dim**-0.5, "window": window})


def relative(actual, expected):
    return float((actual.double() - expected).norm() / expected.norm())


def worst_row(actual, expected):
    """The largest relative error of a row that is not zero."""
    sizes = expected.norm(dim=-1)
    errors = (actual.double() - expected).norm(dim=-1) / sizes
    return float(errors[sizes > 0].max())
