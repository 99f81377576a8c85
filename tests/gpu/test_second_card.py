"""``--device N`` on a machine with several cards: everything happens on that card."""

import json

import pytest
import torch

from tests.functional.cli import perfgate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a machine with two NVIDIA GPUs"),
]


def test_the_last_card_is_measured_as_the_first_is(tmp_path):
    """With the first card current, Triton refused the other card's pointers and memory figures read 0."""
    last = torch.cuda.device_count() - 1
    options = ["--op", "segment/index_add", "--case", "small", "--judged-only", "--device", str(last), "--blocks", "1"]
    done = perfgate("run", "--mode", "both", *options, "--quiet", "--out", tmp_path / "run", timeout=280)
    result = json.loads((tmp_path / "run" / "result.json").read_text())

    assert "WORKLOAD_FAILED" not in done.stdout
    (champion,) = (one for one in result["comparisons"] if one["role"] == "champion")
    assert champion["deterministic"]["busy_ns"] > 0
    assert champion["memory"]["deterministic_bytes"] > 0
