import json
import os
import subprocess
import sys
import threading

import pytest

from perfgate import card_lock
from perfgate.card_lock import lock_file, only_one_on
from perfgate.errors import UnusableError

HOLD = """
import pathlib, sys
from perfgate.card_lock import only_one_on
with only_one_on("cuda:0", say=print, folder=pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds cuda:0."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_waits_says_for_whom_and_gives_up(tmp_path, holder):
    said = []
    with pytest.raises(UnusableError) as caught, only_one_on("cuda:0", say=said.append, patience=0.1, folder=tmp_path):
        pytest.fail("two runs held one card")

    assert len(said) == 1
    assert f"process {holder.pid}, since 20" in said[0]
    assert caught.value.exit_code == 5


def test_it_goes_on_when_the_other_one_ends(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(card_lock, "POLL_SECONDS", 0.01)
    taken = threading.Event()

    def wait():
        with only_one_on("cuda:0", say=lambda text: holder.stdin.close(), patience=60, folder=tmp_path):
            taken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)

    assert taken.is_set()


def test_a_killed_run_leaves_no_lock(tmp_path, holder):
    holder.kill()
    holder.wait()
    said = []
    with only_one_on("cuda:0", say=said.append, patience=5, folder=tmp_path):
        pass

    assert said == []


def test_other_cards_and_the_cpu_are_free(tmp_path, holder):
    said = []
    with only_one_on("cuda:1", say=said.append, folder=tmp_path), only_one_on("cpu", say=said.append, folder=tmp_path):
        assert lock_file("cuda:1", tmp_path).exists()

    assert said == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.symlink(victim, lock_file("cuda:0", tmp_path))
    with pytest.raises(UnusableError, match="can't be opened"), only_one_on("cuda:0", say=print, folder=tmp_path):
        pytest.fail("followed a link")

    assert victim.read_text() == "precious"


def test_every_user_may_take_it_next(tmp_path):
    with only_one_on("cuda:0", say=print, folder=tmp_path):
        pass

    assert lock_file("cuda:0", tmp_path).stat().st_mode & 0o777 == 0o666


def test_several_cards_are_held_together_and_each_is_freed(tmp_path, holder):
    with only_one_on("cuda:1", "cuda:2", say=print, folder=tmp_path):
        held = [lock_file(device, tmp_path).read_text() for device in ("cuda:1", "cuda:2")]

    assert [str(os.getpid())] * 2 == [str(json.loads(one)["pid"]) for one in held]
    waiting = only_one_on("cuda:0", "cuda:1", say=lambda text: None, patience=0.1, folder=tmp_path)
    with pytest.raises(UnusableError, match="has held cuda:0"), waiting:
        pytest.fail("two runs held one card")
    with only_one_on("cuda:1", "cuda:2", say=pytest.fail, folder=tmp_path):
        pass
