"""The child's own story: the device is the current one before a workload is touched."""

import pytest
import torch

from perfgate.model import RunSpec
from perfgate.profilers.spec_file import dump_spec
from perfgate.worker import __main__ as child


@pytest.mark.parametrize(("device", "made_current"), [("cpu", []), ("cuda:1", ["cuda:1"])])
def test_the_runs_device_is_the_current_one(tmp_path, monkeypatch, device, made_current):
    """Found on a machine with two cards: with --device 1, Triton launched on card 0 and memory figures were card 0's."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setitem(child.PURPOSES, "bits", lambda spec, jobs, folder: chosen.append("ran") or [])
    dump_spec(RunSpec("id", "bits", "default", (), device, seed=7), tmp_path / "spec.json")

    child.main(tmp_path / "spec.json")

    assert [*made_current, "ran"] == chosen
