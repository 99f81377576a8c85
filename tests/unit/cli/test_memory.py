"""When `perfgate ranges` tunes malloc."""

import pytest

from perfgate import cli


@pytest.mark.parametrize(
    ("name", "tuned"), [("MALLOC_PERTURB_", False), ("GLIBC_TUNABLES", False), ("MALLOC_ARENA_MAX", False), ("MALLOCKED", True)]
)
def test_memory_that_the_environment_tunes_is_left_alone(monkeypatch, name, tuned):
    asked = []

    def library(path):
        asked.append(path)
        raise OSError("not needed here")

    for given in ("MALLOC_PERTURB_", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX"):
        monkeypatch.delenv(given, raising=False)
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr("ctypes.CDLL", library)
    cli._keep_memory()

    assert tuned == bool(asked)
