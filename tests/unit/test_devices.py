"""Which device a run takes; NVML is played."""

import pytest

import perfgate.devices
from perfgate import gate
from perfgate.devices import choose_device, device_name, why_no_gpu
from perfgate.errors import UsageError


@pytest.fixture
def cards(monkeypatch):
    """The cards that there are; asking for another one is a problem."""
    there = {}
    missing = {}, "NVML does not start: driver not loaded"
    monkeypatch.setattr(perfgate.devices, "describe", lambda device: (there[device], "") if device in there else missing)
    return there


def test_auto_takes_the_first_card(cards):
    cards["cuda:0"] = {"name": "NVIDIA H200"}

    assert ("cuda:0", "", "NVIDIA H200") == (choose_device("auto"), why_no_gpu(), device_name("cuda:0"))


def test_a_card_that_was_named_and_is_not_there_is_refused(cards):
    with pytest.raises(UsageError, match="no GPU 1: NVML does not start"):
        choose_device("1")


def test_auto_on_a_machine_whose_driver_broke_says_why_it_took_the_cpu(cards):
    taken = gate._this_machine("auto")

    assert ("cpu", "cpu") == (taken.device, taken.name)
    assert [("NO_GPU", "the CPU was taken: NVML does not start: driver not loaded")] == [
        (one.code, one.text) for one in taken.findings
    ]
    assert () == gate._this_machine("cpu").findings
