"""Shards: together they are the plan, none is empty, what is compared stays together."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.config import Config
from perfgate.errors import UsageError
from perfgate.model import Variant
from perfgate.plan import make_plan
from perfgate.registry import Registry
from perfgate.shards import of_shard, parse_shard
from tests.unit.test_registry import sound_op

PLANS = st.dictionaries(
    st.tuples(st.sampled_from(["moe/a", "moe/b", "segment/c"]), st.sampled_from(["small", "typical", "edge-1", "edge-2"])),
    st.tuples(st.integers(1, 2), st.integers(2, 6)),
    min_size=1,
)


def variants(pairs):
    """Of each (op, case): how many phases and implementations."""
    return tuple(
        Variant(op, case, phase, f"i{number}", "default" if number == 0 else "candidate")
        for (op, case), (phases, implementations) in pairs.items()
        for phase in ("fwd", "bwd")[:phases]
        for number in range(implementations)
    )


@given(PLANS, st.data())
def test_every_variant_is_in_exactly_one_shard(pairs, data):
    plan = variants(pairs)
    total = data.draw(st.integers(1, len(pairs)))

    parts = [of_shard(plan, f"{number}/{total}") for number in range(1, total + 1)]

    assert Counter(plan) == Counter(one for part in parts for one in part)
    assert all(parts)


@given(PLANS, st.data())
def test_a_pair_stays_together_and_the_load_is_even(pairs, data):
    plan = variants(pairs)
    total = data.draw(st.integers(1, len(pairs)))

    parts = [of_shard(plan, f"{number}/{total}") for number in range(1, total + 1)]
    homes = [{(one.op, one.case) for one in part} for part in parts]
    loads = [len(part) for part in parts]

    assert len(pairs) == sum(len(home) for home in homes)
    assert max(loads) - min(loads) <= max(Counter((one.op, one.case) for one in plan).values())


@given(PLANS, st.randoms())
def test_the_split_does_not_depend_on_the_order_of_the_plan(pairs, random):
    plan = variants(pairs)
    shuffled = list(plan)
    random.shuffle(shuffled)

    assert set(of_shard(plan, f"1/{len(pairs)}")) == set(of_shard(shuffled, f"1/{len(pairs)}"))


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2", "1 / 2", "01/2", "1/99999"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(UsageError, match="shard"):
        parse_shard(text)


def test_a_shard_keeps_the_ranges_of_the_whole_in_its_plan():
    registry = Registry([sound_op("moe/combine"), sound_op("segment/sum")])
    plans = [make_plan(registry, Config(shard=f"{number}/2"), "cpu", "torch") for number in (1, 2)]

    assert [("moe/combine:smoke:fwd", "segment/sum:smoke:fwd")] * 2 == [plan.planned for plan in plans]
    assert [{"moe/combine"}, {"segment/sum"}] == [{one.op for one in plan.variants} for plan in plans]
    assert () == make_plan(registry, Config(), "cpu", "torch").planned


def test_more_shards_than_pairs_are_refused():
    registry = Registry([sound_op("moe/combine"), sound_op("segment/sum")])

    with pytest.raises(UsageError, match=r"only 2 \(op, case\) pairs") as caught:
        make_plan(registry, Config(shard="1/3"), "cpu", "torch")
    assert "use at most 2 shards" == caught.value.mend


def test_the_option_is_checked_before_anything_else():
    with pytest.raises(UsageError, match="shard '5/4'"):
        Config(shard="5/4")
