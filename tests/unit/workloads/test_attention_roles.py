"""Who is judged where flash-attn-4's packages are installed, and where they are not."""

import importlib.util
from importlib import metadata

import pytest

from perfgate import discover


@pytest.mark.parametrize(
    ("found", "champion"),
    [({}, "fa4_exact"), ({"flash-attn-4": "4.0.0b37"}, "two_pass"), ({"einops": None}, "two_pass")],
)
def test_the_champion_is_the_fastest_that_is_installed(monkeypatch, found, champion):
    probe = discover.module("attention.fa4.probe")
    played = {**probe.VERSIONS, **dict.fromkeys(probe.ALSO, "1.0"), **found}

    def version(name):
        if played.get(name) is None:
            raise metadata.PackageNotFoundError(name)
        return played[name]

    monkeypatch.setattr(metadata, "version", version)
    module = discover.module("attention.backward.ops")
    again = importlib.util.module_from_spec(module.__spec__)
    module.__spec__.loader.exec_module(again)
    roles = {one.name: one.role for one in again.backward.implementations}

    assert [champion] == [name for name, role in roles.items() if role == "champion"]
    assert {"champion", "candidate"} == {roles["fa4_exact"], roles["two_pass"]}
