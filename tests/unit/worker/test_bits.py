"""In which order a bits child takes its jobs, and what it tells while it runs."""

import json
from dataclasses import replace

import pytest
import torch

from perfgate.model import RunSpec, Variant
from perfgate.registry import Op, Registry
from perfgate.worker import bits
from perfgate.worker.job import Job

CALLED: list[str] = []


def adds(name):
    def run(x):
        CALLED.append(name)
        return x["a"] + 1

    return run


@pytest.fixture
def arm():
    op = Op("family/op")
    op.cases(smoke={})
    op.inputs(lambda case, device, generator: {"a": torch.ones(4)})
    op.stock_deterministic("one")(adds("one"))
    op.champion("two")(adds("two"))
    variants = tuple(
        Variant("family/op", "smoke", "fwd", *who) for who in (("one", "stock_deterministic"), ("two", "champion"))
    )
    spec = RunSpec("id", "bits", "deterministic", variants, "cpu", replays=2)
    CALLED.clear()
    return spec, [Job.of(Registry([op]), variant, spec) for variant in variants]


@pytest.mark.parametrize(("position", "order"), [(0, ["one", "two"]), (1, ["two", "one"])])
def test_the_second_process_of_an_arm_takes_the_jobs_from_the_end(arm, tmp_path, position, order):
    spec, jobs = arm

    outcomes = bits.run(replace(spec, position=position), jobs, tmp_path)

    assert [one.variant.rsplit(":", 1)[1] for one in outcomes] == order
    assert list(dict.fromkeys(CALLED)) == order
    told = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(one["variant"].rsplit(":", 1)[1], one["status"]) for one in told] == [
        (name, status) for name in order for status in ("started", "ok")
    ]
