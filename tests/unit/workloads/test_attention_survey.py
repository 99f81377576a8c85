"""The forward's survey: no key and no query of any shape is left out, whatever its magnitude."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate import discover

from .attention_cases import problem

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the interpreter's NumPy meets NaN and Inf
GROUPS = (1, 4, 8)


@pytest.fixture(autouse=True)
def _a_few_rows_for_each_program(monkeypatch):
    monkeypatch.setattr(discover.module("attention.shape"), "SURVEYED", 64)


def surveys(case):
    """The survey as the forward takes it and taken alone."""
    return case.forward()[2], discover.module("attention.forward.kernels").survey_of(*case[:3])


@st.composite
def shapes(draw):
    group = draw(st.sampled_from(GROUPS))
    kv_len = draw(st.one_of(st.integers(1, 40), st.sampled_from((128, 129, 257))))
    mask = draw(st.sampled_from((dict(causal=False), dict(causal=True), dict(causal=True, window=9))))
    return dict(heads=2 * group, kv_heads=2, q_len=draw(st.sampled_from((1, 20, 70))), kv_len=kv_len, **mask)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes(), st.data())
def test_the_largest_key_value_and_query_are_found_wherever_they_are(device, shape, data):
    case = problem(device, **shape)
    places = st.tuples(st.integers(0, 1), st.integers(0, shape["kv_len"] - 1), st.integers(0, case.k.shape[3] - 1))
    key_place, value_place = data.draw(places), data.draw(places)
    head, query = data.draw(st.integers(0, shape["heads"] - 1)), data.draw(st.integers(0, shape["q_len"] - 1))
    case.q[0, head, query, value_place[2]] = -99.0
    case.k[0][key_place] = -77.0
    case.v[0][value_place] = -55.0
    expected = case.v.float().norm(dim=-1).amax(dim=2).flatten()

    for survey in surveys(case):
        assert survey.reach[1, key_place[0]].amax() == 77.0
        assert survey.reach[2, head // (shape["heads"] // 2)].amax() == 99.0
        assert torch.allclose(expected, survey.reach[0].amax(dim=1), rtol=1e-5)


@pytest.mark.parametrize(("kv_len", "group"), [(65, 1), (20, 4)])
def test_no_key_is_left_out(kv_len, group, device):
    case = problem(device, heads=kv_len * group, kv_heads=kv_len, q_len=1, kv_len=kv_len)  # a head for each key
    for one in (case.k, case.v):
        one.mul_(0.1).diagonal(dim1=1, dim2=2).fill_(50.0)

    for survey in surveys(case):
        assert torch.equal(torch.full((kv_len,), 50.0, device=device), survey.reach[1].amax(dim=1))
        assert torch.allclose(torch.tensor(400.0, device=device), survey.reach[0].amax(dim=1), rtol=1e-5)  # √64 · 50


@pytest.mark.parametrize("magnitude", [2.0**-24, 2.0**-20, 1.0, 2.0**15])
def test_values_at_any_magnitude_have_their_norm(magnitude, device):
    case = problem(device, heads=4, kv_heads=2, q_len=5, kv_len=70)
    case.v.copy_(torch.where(case.v < 0, -magnitude, magnitude))

    for survey in surveys(case):
        longest = survey.reach[0].amax(dim=1)
        assert torch.allclose(torch.full_like(longest, case.v.shape[3] ** 0.5 * magnitude), longest, rtol=1e-6)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("which", ["k", "v"])
def test_nan_and_inf_make_nan_of_their_heads_maximum_alone(which, special, device):
    case = problem(device, heads=4, kv_heads=2, q_len=5, kv_len=70)
    getattr(case, which)[0, 1, 69, 2] = special

    for survey in surveys(case):
        spoilt, other = survey.reach["vk".index(which)], survey.reach["kv".index(which)]
        assert torch.isfinite(spoilt[0]).all()
        assert spoilt[1].isnan().any()
        assert torch.isfinite(other).all()


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_inf_in_queries_are_left_out(special, device):
    case = problem(device, heads=2, kv_heads=1, q_len=70)
    case.q[0, 1, :69] = special
    case.q[0, 0].zero_()
    case.q[0, 1, 69, :] = 2.0**-24 if case.q.dtype == torch.float16 else 2.0**-133  # the smallest there is

    for survey in surveys(case):
        assert survey.reach[2].amax() == case.q[0, 1, 69, 0].float() > 0


def test_zeros_have_none(device):
    case = problem(device, q_len=5, kv_len=70)
    for one in case[:3]:
        one.zero_()

    for survey in surveys(case):
        assert not survey.reach.any()


@pytest.mark.parametrize(
    ("queries", "keys", "group", "most"), [(200, 64, 4, 50), (1, 1000, 4, 63), (129, 129, 1, 43), (1, 1, 8, 1)]
)
def test_no_program_has_more_than_its_queries_and_keys(queries, keys, group, most):
    count = discover.module("attention.shape").surveyors(queries, keys, group)

    assert most == max(-(-queries // count), -(-keys // (count * group)))  # of at most 64


@pytest.mark.parametrize(("q_len", "kv_len"), [(200, 20), (1, 200)])
def test_every_part_is_written(q_len, kv_len, device, monkeypatch):
    given = problem(device, heads=4, kv_heads=2, q_len=q_len, kv_len=kv_len, causal=False)
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: torch.full(*shape, float("nan"), **options))

    reach = given.forward()[2].reach

    assert reach.isfinite().all()
    assert 2 * discover.module("attention.shape").surveyors(q_len, kv_len, 2) == reach.shape[2]
