"""``perfgate verify`` as a user runs it."""

import json
import subprocess
import sys

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tests.functional.cli import ROOT, perfgate


@pytest.fixture
def runs(tmp_path):
    for name in ("a", "b"):
        for rank in range(2):
            writer = EventFileWriter(str(tmp_path / name / f"rank{rank}"))
            for step in range(1, 6):
                loss = 2.5 + 1e-6 * (name == "b" and rank == 1 and step >= 4)
                values = [Summary.Value(tag="loss", simple_value=loss), Summary.Value(tag="step-time", simple_value=step * 0.1)]
                writer.add_event(Event(step=step, summary=Summary(value=values)))
            writer.close()
    return tmp_path


def test_equal_runs_are_0_and_say_how_much_was_compared(runs):
    for rank in range(2):
        (runs / "c" / f"rank{rank}").mkdir(parents=True)
        source = next((runs / "a" / f"rank{rank}").iterdir())
        (runs / "c" / f"rank{rank}" / "events.out.tfevents.2").write_bytes(source.read_bytes())

    done = perfgate("verify", runs / "a", runs / "c")

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith("EQUAL: 0 of 10 values, 1 tags, 5 steps, 2 ranks differ\n")
    assert "left out (time, speed, memory, or as asked): step-time" in done.stdout


def test_different_runs_are_3_and_the_first_difference_is_named(runs):
    done = perfgate("verify", runs / "a", runs / "b")

    assert done.returncode == 3
    assert "DIFFERENT: 2 of 10 values" in done.stdout
    assert "first difference: step 4, rank rank1, loss: 2.5 (0x40200000) against 2.5000009536743164 (0x40200004)" in done.stdout


def test_json(runs):
    content = json.loads(perfgate("verify", runs / "a", runs / "b", "--format", "json").stdout)

    assert (False, 2) == (content["equal"], content["counts"]["differing"])


@pytest.mark.parametrize(
    "arguments", [("gone",), ("a", "--format", "xml"), ("b", "--exclude", "*"), ("b", "--tolerance", "1e-6"), ("truncated",)]
)
def test_what_can_not_be_compared_is_2(runs, arguments):
    file = next((runs / "b" / "rank0").iterdir())
    (runs / "truncated").mkdir()
    (runs / "truncated" / file.name).write_bytes(file.read_bytes()[:-3])

    done = perfgate("verify", runs / "a", *arguments, cwd=runs)

    assert (2, "") == (done.returncode, done.stdout)


def test_reading_event_files_needs_neither_torch_nor_pandas(runs):
    code = (
        "import sys, contextlib\n"
        "from perfgate.cli import main\n"
        f"sys.argv = ['perfgate', 'verify', {str(runs / 'a')!r}, {str(runs / 'b')!r}]\n"
        "with contextlib.suppress(SystemExit):\n    main()\n"
        "assert 'tensorboard' in sys.modules\n"
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules or 'tensorflow' in sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 0
