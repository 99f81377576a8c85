"""What attention with a gradient keeps between flash-attn-4's forward and its backward."""

import pytest
import torch

from perfgate import discover

RULE = {"causal": True, "scale": 0.125, "window": None}


@pytest.fixture
def calls(monkeypatch):
    """Stands in for both hooks and keeps what the backward is given."""
    hooks, kept = discover.module("attention.fa4.hooks"), []

    def backward(q, k, v, *rest, **options):
        kept.append((rest, options))
        return q, k, v

    monkeypatch.setattr(hooks, "forward", lambda q, k, v, **rule: (q + 1, "lse"))
    monkeypatch.setattr(hooks, "surveyed_forward", lambda q, k, v, **rule: (q + 1, "lse", extents_of(k)))
    monkeypatch.setattr(hooks, "backward", backward)
    return kept


def extents_of(k):
    """As where the forward can survey, or (a kv head of 3) can't."""
    return None if k.shape[1] == 3 else "extents"


def engine(name):
    return discover.module("attention.differentiable").ENGINES[name]()


def tensors(kv_heads=1):
    return torch.zeros(1, kv_heads, 2, 4), torch.zeros(1, kv_heads, 2, 4), torch.zeros(1, kv_heads, 2, 4)


@pytest.mark.parametrize(
    ("name", "wanted", "kept"),
    [
        ("fa4", True, ("lse",)),
        ("fa4_ordered", True, ("lse",)),
        ("fa4_exact", True, ("lse", "extents")),
        ("fa4_exact", False, ("lse",)),
    ],
)
def test_only_an_exact_backward_that_is_wanted_has_the_forward_survey(calls, name, wanted, kept):
    assert kept == engine(name).forward(*tensors(), wanted, **RULE)[1]


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_the_exact_backward_is_given_what_the_forward_surveyed(calls, kv_heads):
    given = tensors(kv_heads)
    out, kept = engine("fa4_exact").forward(*given, True, **RULE)
    engine("fa4_exact").backward(*given, out, *kept, "gradient", **RULE)
    rest, options = calls[0]

    assert (out, "lse", "gradient") == rest
    assert {**RULE, "rule": "exact", "extents": extents_of(given[1])} == options
