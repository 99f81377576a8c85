from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.errors import ProfilerError, UsageError
from perfgate.profilers import choose, nsys_found

MakeNsys = Callable[..., Path]


@pytest.fixture
def no_nsys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERFGATE_NSYS", raising=False)
    monkeypatch.setattr(nsys_found, "candidates", lambda environment: iter([]))


@pytest.fixture
def nsys(make_nsys: MakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFGATE_NSYS", str(make_nsys()))


@pytest.mark.usefixtures("nsys")
def test_auto_takes_nsys_on_a_gpu() -> None:
    profiler, told = choose("auto", device="cuda:0")

    assert ("nsys", ()) == (profiler.name, told)


@pytest.mark.usefixtures("nsys")
def test_auto_takes_torch_on_a_cpu_and_says_so() -> None:
    profiler, told = choose("auto", device="cpu")

    assert ("torch", ["torch.profiler was used: the device is a CPU"]) == (profiler.name, [one.text for one in told])


@pytest.mark.usefixtures("no_nsys")
def test_auto_takes_torch_where_nsys_is_missing_and_says_so() -> None:
    profiler, told = choose("auto", device="cuda:0")

    assert ("torch", True, True) == (profiler.name, "not nsys: no nsys found" in told[0].text, "install" in told[0].next)


def test_auto_tells_of_an_nsys_that_is_broken(make_nsys: MakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFGATE_NSYS", str(make_nsys(version="exit 3")))
    profiler, told = choose("auto", device="cuda:0")

    assert ("torch", True) == (profiler.name, "failed (exit 3)" in told[0].text)


@pytest.mark.usefixtures("no_nsys")
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_nsys_insists(device: str) -> None:
    with pytest.raises(ProfilerError, match="no nsys found"):
        choose("nsys", device=device)


@pytest.mark.usefixtures("nsys")
def test_nsys_on_a_cpu_is_taken_and_told() -> None:
    profiler, told = choose("nsys", device="cpu")

    assert ("nsys", ["HOST_TIMES_ONLY"]) == (profiler.name, [one.code for one in told])


@pytest.mark.parametrize("name", ["torch", "none"])
def test_a_name_is_taken_at_its_word(name: str) -> None:
    profiler, told = choose(name, device="cpu")

    assert (name, ()) == (profiler.name, told)


@pytest.mark.parametrize(
    ("name", "stored", "text"),
    [
        ("nvprof", None, "no profiler 'nvprof'"),
        ("replay", None, "needs a stored run"),
        ("replay", "", "holds no stored captures"),
    ],
)
def test_what_can_not_be_chosen_is_a_usage_error(tmp_path: Path, name: str, stored: str | None, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        choose(name, device="cpu", replay_from=None if stored is None else tmp_path)


def test_a_replay_says_that_nothing_ran_here(tmp_path: Path) -> None:
    (tmp_path / "captures/x").mkdir(parents=True)
    (tmp_path / "captures/x/spec.json").write_text("{}")
    profiler, told = choose("replay", device="cpu", replay_from=tmp_path)

    assert ("replay", ["REPLAYED"]) == (profiler.name, [one.code for one in told])
