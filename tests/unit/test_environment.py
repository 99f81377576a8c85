from __future__ import annotations

import getpass
import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfgate import environment
from perfgate.environment import Difference, fingerprint, git_state, torch_cuda, unlike

GPU = {"name": "NVIDIA H200", "driver": "580.159", "power_limit_w": 700.0, "mig": "off", "id": "abc"}
A: dict[str, Any] = {
    "device": "cuda",
    "gpu": GPU,
    "cpu": {"name": "Xeon"},
    "torch": "2.11.0",
    "triton": "3.6.0",
    "cuda": "13.0",
    "nsys": "2025.3.1",
    "git": {"commit": "a"},
    "python": "3.12.1",
}


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "kernel.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_fingerprint_is_plain_json_with_all_versions() -> None:
    found = fingerprint("cpu")

    assert found == json.loads(json.dumps(found))
    assert ("cpu", None, True, True) == (found["device"], found["gpu"], bool(found["torch"]), bool(found["cpu"]["name"]))


def test_a_fingerprint_holds_no_name_or_place_of_this_machine() -> None:
    text = json.dumps(fingerprint("cuda:0"))
    private = {socket.gethostname(), str(Path.home()), str(Path.cwd()), sys.prefix, f'"{getpass.getuser()}"'}

    assert set() == {word for word in private if len(word) > 1 and word in text}


def test_a_gpu_that_can_not_be_asked_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "describe", lambda device: ({}, "NVML does not start: Driver Not Loaded"))
    found = fingerprint("cuda:0")

    assert ({}, True) == (found["gpu"], "NVML does not start: Driver Not Loaded" in found["warnings"])


def test_a_fingerprint_does_not_import_torch() -> None:
    text = "import sys; from perfgate.environment import fingerprint; fingerprint('cpu'); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)

    assert b"False" == ran.stdout.strip()


def test_torchs_cuda_version_is_the_one_that_torch_tells() -> None:
    import torch

    assert torch.version.cuda == torch_cuda()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '13.0'\n", "13.0"),
        ("cuda = '12.8'\n", "12.8"),
        ("cuda: Optional[str] = None\n", None),
        ("", None),
    ],
)
def test_every_spelling_of_version_py_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str | None
) -> None:
    (tmp_path / "version.py").write_text(f"hip: Optional[str] = '7.0'\n{text}")
    found = SimpleNamespace(origin=f"{tmp_path}/__init__.py")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)

    assert expected == torch_cuda()


def test_like_runs_do_not_differ_whatever_their_commit_card_or_python() -> None:
    other = {**A, "git": {"commit": "b"}, "gpu": {**GPU, "id": "def"}, "cpu": {"name": "EPYC"}, "python": "3.11.2"}

    assert () == unlike(A, other)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"torch": "2.13.0"}, [Difference("torch", "2.11.0", "2.13.0")]),
        ({"gpu": {**GPU, "driver": "575.1"}}, [Difference("gpu.driver", "580.159", "575.1")]),
        ({"gpu": {**GPU, "mig": "3g.71gb"}}, [Difference("gpu.mig", "off", "3g.71gb")]),
        ({"gpu": {**GPU, "power_limit_w": 500.0}}, [Difference("gpu.power_limit_w", 700.0, 500.0)]),
        ({"nsys": None, "triton": "3.9.0"}, [Difference("triton", "3.6.0", "3.9.0"), Difference("nsys", "2025.3.1", None)]),
    ],
)
def test_unlike_runs_name_their_fields(change: dict[str, Any], expected: list[Difference]) -> None:
    assert expected == list(unlike(A, {**A, **change}))


def test_a_gpu_run_is_unlike_a_cpu_run_and_an_empty_fingerprint() -> None:
    assert {"device", "gpu.name", "cpu.name"} <= {one.field for one in unlike(A, {"device": "cpu", "gpu": None})}
    assert {"device", "torch"} <= {one.field for one in unlike(A, {})}


def test_cpu_runs_on_other_processors_differ() -> None:
    a, b = ({"device": "cpu", "gpu": None, "cpu": {"name": name}} for name in ("Xeon", "EPYC"))

    assert ["cpu.name: 'Xeon' against 'EPYC'"] == [str(one) for one in unlike(a, b)]


def test_a_clean_repository_is_its_commit(repository: Path) -> None:
    found = git_state(repository)

    assert found is not None
    assert (40, False, None) == (len(found["commit"]), found["dirty"], found["changes"])


def test_changes_make_it_dirty_and_can_be_told_apart(repository: Path) -> None:
    seen = []
    for text in ("x = 2\n", "x = 3\n"):
        (repository / "kernel.py").write_text(text)
        seen.append(git_state(repository))

    assert (True, 2) == (all(one is not None and one["dirty"] for one in seen), len({one["changes"] for one in seen if one}))


def test_a_new_file_makes_it_dirty(repository: Path) -> None:
    (repository / "new.py").write_text("")
    found = git_state(repository)

    assert found is not None
    assert found["dirty"]


def test_outside_of_git_there_is_no_commit(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
