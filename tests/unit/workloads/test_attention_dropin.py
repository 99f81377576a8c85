"""The drop-in says what it takes, what it refuses, and never falls back in silence."""

import logging

import pytest
import torch

from perfgate import discover

from .attention_cases import problem, relative

CALL = ("cuda:0", 128, 16, 4, 4096, 4096, True, None, "bfloat16")


@pytest.fixture
def dropin(monkeypatch):
    """The module, as if on a GPU where both implementations run, and either may be taken unasked."""
    module = discover.module("attention.dropin")
    module.choose.cache_clear()
    monkeypatch.setattr(module, "ORDER", ("fa4_exact", "two_pass"))
    monkeypatch.setattr(module.probe, "unsupported", lambda *_, **__: "")
    monkeypatch.setattr(module.support, "unsupported", lambda *_, **__: "")
    yield module
    module.choose.cache_clear()


def test_the_package_offers_it_by_name():
    assert discover.module("attention").sdpa is discover.module("attention.dropin").sdpa
    with pytest.raises(AttributeError, match="no attribute 'spda'"):
        discover.module("attention").spda  # noqa: B018


def test_the_fastest_is_asked_first_and_needs_no_packages_last():
    assert discover.module("attention.dropin").ORDER == ("fa4_exact", "two_pass")


def test_the_fastest_that_runs_is_taken_and_said_once_per_shape(dropin, caplog):
    with caplog.at_level(logging.INFO, logger=dropin.log.name):
        taken = [dropin.choose(*CALL) for _ in range(3)]

    assert taken == ["fa4_exact"] * 3
    assert len(caplog.records) == 1
    assert "runs as fa4_exact" in caplog.text


def test_what_was_passed_over_is_said_with_its_reason(dropin, monkeypatch, caplog):
    monkeypatch.setattr(dropin.probe, "unsupported", lambda *_, **__: "needs flash-attn-4")

    with caplog.at_level(logging.INFO, logger=dropin.log.name):
        taken = dropin.choose(*CALL)

    assert taken == "two_pass"
    assert "fa4_exact: needs flash-attn-4" in caplog.text


def test_what_the_caller_names_is_taken_or_refused_never_replaced(dropin, monkeypatch):
    assert dropin.choose(*CALL, only="triton_exact") == "triton_exact"

    monkeypatch.setattr(dropin.probe, "unsupported", lambda *_, **__: "needs flash-attn-4")
    with pytest.raises(NotImplementedError, match=r"fa4_exact: needs flash-attn-4$"):
        dropin.choose(*CALL, only="fa4_exact")


def test_f16_passes_over_flash_attn_4(dropin):
    assert dropin.choose(*CALL[:-1], "float16") == "two_pass"


def test_where_nothing_runs_every_reason_is_named(dropin, monkeypatch):
    monkeypatch.setattr(dropin.probe, "unsupported", lambda *_, **__: "no package")
    monkeypatch.setattr(dropin.support, "unsupported", lambda *_, **__: "head dimension 96")

    with pytest.raises(NotImplementedError, match="fa4_exact: no package; two_pass: head dimension 96"):
        dropin.choose(*CALL)


def test_without_a_gpu_it_raises(device):
    if device == "cuda":
        pytest.skip("there is a GPU")
    discover.module("attention.dropin").choose.cache_clear()

    with pytest.raises(NotImplementedError, match="a GPU"):
        discover.module("attention").sdpa(*problem("cpu")[:3], is_causal=True)


@pytest.mark.parametrize(
    ("error", "words", "change", "options"),
    [
        (ValueError, "need enable_gqa", {"heads": 2}, {}),
        (ValueError, "which corner", {"kv_len": 50}, {"is_causal": True}),
        (ValueError, "window needs is_causal", {}, {"window": 4}),
        (ValueError, "one of two_pass, triton_exact, fa4_exact", {}, {"implementation": "cudnn"}),
        (ValueError, "a finite number above 0", {}, {"scale": -0.125}),
        (ValueError, "a finite number above 0", {}, {"scale": 0.0}),
        (ValueError, "a finite number above 0", {}, {"scale": float("nan")}),
    ],
)
def test_calls_that_say_too_little_or_contradict_themselves_are_refused(error, words, change, options):
    q, k, v = problem("cpu", **change)[:3]

    with pytest.raises(error, match=words):
        discover.module("attention").sdpa(q, k, v, **options)


def test_more_heads_than_a_grid_holds_are_refused_before_anything_runs(dropin):
    many = torch.empty((66000, 1, 1, 128), dtype=torch.bfloat16)
    grouped = torch.empty((22000, 2, 1, 128), dtype=torch.bfloat16)

    with pytest.raises(
        NotImplementedError, match="66000 × 1 heads in one launch of fa4_exact, which takes 65535: split the batch"
    ):
        dropin.sdpa(many, many, many)
    with pytest.raises(NotImplementedError, match="22000 × 4 heads"):
        dropin.sdpa(grouped, grouped[:, :1], grouped[:, :1], enable_gqa=True)


def test_shapes_and_dtypes_that_do_not_fit_are_refused_by_name():
    sdpa = discover.module("attention").sdpa
    q, k, v = problem("cpu")[:3]

    with pytest.raises(ValueError, match="v has shape"):
        sdpa(q, k, v[:, :, :-1])
    with pytest.raises(TypeError, match="k is float32"):
        sdpa(q, k.float(), v)
    with pytest.raises(TypeError, match="q is float32, but bfloat16 or float16"):
        sdpa(q.float(), k.float(), v.float())


@pytest.mark.parametrize("name", ["two_pass", "triton_exact"])
def test_it_is_attention_with_its_gradients(name, dropin, device):
    given = problem(device, heads=2, kv_heads=1, q_len=20)
    wanted = [one.requires_grad_() for one in given[:3]]

    out = discover.module("attention").sdpa(*wanted, is_causal=True, enable_gqa=True, implementation=name)
    actual = torch.autograd.grad(out, wanted, given.grad_out)

    expected_out, _, *gradients = given._replace(q=given.q.detach(), k=given.k.detach(), v=given.v.detach()).exact()
    assert relative(out.detach(), expected_out) < 6e-3
    assert max(map(relative, actual, gradients)) < 6e-3


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("head dimension 96", {"dim": 96}),
        ("no whole groups", {"heads": 6, "kv_heads": 4}),
        ("window 0", {"window": 0}),
        ("and causal", {"window": 8, "causal": False}),
        ("need a GPU", {}),
    ],
)
def test_the_probe_says_why_not(words, change):
    shape = dict(dim=128, heads=16, kv_heads=4, q_len=128, kv_len=128, causal=True, window=None) | change

    assert words in discover.module("attention.support").unsupported("cpu", **shape)
