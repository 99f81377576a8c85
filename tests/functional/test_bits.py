"""``perfgate bits``: recorded in one process, compared with another."""

import json

import pytest

from tests.functional.cli import perfgate

SUBJECT = """
import torch

def stable():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(300, 1000, generator=generator)
    x[250, 7] += {nudge}
    return {{"x": x, "mean": x.double().mean()}}

calls = []
def racy():
    calls.append(1)
    return torch.full((4,), float(len(calls)))

def broken():
    raise ZeroDivisionError
"""


@pytest.fixture
def subject(tmp_path):
    def write(name, nudge):
        (tmp_path / name).write_text(SUBJECT.format(nudge=nudge))
        return f"{tmp_path / name}:stable"

    return write


def test_ops_recorded_by_two_processes_are_equal(tmp_path):
    choice = ("--op", "moe/combine", "--device", "cpu", "--case", "smoke")
    first = perfgate("bits", "record", *choice, "--out", tmp_path / "1.json")
    perfgate("bits", "record", *choice, "--out", tmp_path / "2.json", "--replays", "2")
    done = perfgate("bits", "compare", tmp_path / "1.json", tmp_path / "2.json")

    assert first.returncode == 0
    assert "moe/combine:smoke:fwd:torch.scatter_add_.deterministic: 0 of 2 replays differ" in first.stdout
    assert "moe/combine:smoke:fwd:triton.gather: Triton kernels need a GPU" in first.stdout
    assert done.returncode == 0
    assert done.stdout.startswith("EQUAL: 0 differences, ")
    content = json.loads((tmp_path / "1.json").read_text())
    assert (":4096:8", "deterministic") == (content["variables"]["CUBLAS_WORKSPACE_CONFIG"], content["mode"])


def test_another_seed_is_another_record_and_said_so(tmp_path):
    choice = ("--op", "moe/combine", "--device", "cpu", "--case", "smoke")
    perfgate("bits", "record", *choice, "--out", tmp_path / "1.json")
    perfgate("bits", "record", *choice, "--out", tmp_path / "2.json", "--seed", "1")
    done = perfgate("bits", "compare", tmp_path / "1.json", tmp_path / "2.json")

    assert done.returncode == 3
    assert "the records' surroundings differ: seed: 0 against 1" in done.stdout


def test_a_function_of_the_users_own_and_where_it_differs(tmp_path, subject):
    for number, nudge in ((1, 0.0), (2, 0.0), (3, 1e-3)):
        target = subject("subject.py", nudge)
        done = perfgate("bits", "record", "--function", target, "--device", "cpu", "--out", tmp_path / f"{number}.json")
        assert done.returncode == 0, done.stderr

    assert perfgate("bits", "compare", tmp_path / "1.json", tmp_path / "2.json").returncode == 0
    done = perfgate("bits", "compare", tmp_path / "1.json", tmp_path / "3.json")
    assert done.returncode == 3
    assert "output['x']: the first difference lies between [0, 0] and [262, 143]; 1 of 2 MiB differ" in done.stdout


def test_replays_that_differ_are_3_and_still_recorded(tmp_path, subject):
    target = subject("subject.py", 0.0).replace("stable", "racy")

    done = perfgate("bits", "record", "--function", target, "--device", "cpu", "--out", tmp_path / "r.json")

    assert done.returncode == 3
    assert "2 of 2 replays differ: run 2: output: 4/4 differ" in done.stdout
    assert (tmp_path / "r.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--function", "nowhere.py:f"), 2, "can't be imported"),
        (("--function", "json:nothing"), 2, "has no function 'nothing'"),
        (("--function", "json:loads", "--op", "moe/combine"), 2, "stands instead of ops"),
        (("--op", "moe/none"), 2, "no op 'moe/none'"),
        (("--mode", "fast"), 2, "no mode 'fast'"),
        (("--replays", "1"), 2, "replays"),
    ],
)
def test_wrong_requests_write_nothing(tmp_path, arguments, code, said):
    done = perfgate("bits", "record", *arguments, "--device", "cpu", "--out", tmp_path / "r.json")

    assert code == done.returncode
    assert said in done.stderr
    assert not (tmp_path / "r.json").exists()


def test_a_broken_environment_is_refused(tmp_path):
    done = perfgate("bits", "record", "--op", "moe/combine", "--device", "cpu", "--out", tmp_path / "r.json", NCCL_ALGO="Tree")

    assert done.returncode == 2
    assert "NCCL_ALGO='Tree'" in done.stderr


def test_compare_wants_two_records(tmp_path):
    (tmp_path / "r.json").write_text("{}")

    assert perfgate("bits", "compare", tmp_path / "r.json", tmp_path / "gone.json").returncode == 2
    assert "are the same" in perfgate("bits", "compare", tmp_path / "r.json", tmp_path / "r.json").stderr


def test_controls_without_a_gpu_are_unproven_not_passed():
    done = perfgate("bits", "control", "--device", "cpu", "--format", "json")

    rows = json.loads(done.stdout)
    assert done.returncode == 0
    assert rows
    assert not any(row["proven"] for row in rows)
    text = perfgate("bits", "control", "--device", "cpu", "--op", "moe/combine").stdout
    assert text.startswith("moe/combine: unproven sensitivity: no racy control ran (")
