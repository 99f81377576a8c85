import json
import os
import subprocess
import sys

import pytest

from perfgate.errors import UsageError
from perfgate.program.rank import main, rank_of
from tests.functional.cli import ROOT


def wrapped(*arguments, **environment):
    command = [sys.executable, "-m", "perfgate.program.rank", *arguments]
    kept = {name: value for name, value in os.environ.items() if "RANK" not in name and "PROCID" not in name}
    return subprocess.run(
        command, capture_output=True, text=True, env={**kept, "PYTHONPATH": str(ROOT), **environment}, timeout=60, check=False
    )


def test_rank_as_each_launcher_names_it():
    assert 3 == rank_of({"RANK": "3", "SLURM_PROCID": "1"})
    assert 7 == rank_of({"SLURM_PROCID": "7"})
    assert 2 == rank_of({"OMPI_COMM_WORLD_RANK": "2"})
    with pytest.raises(UsageError, match="no rank"):
        rank_of({"RANK": ""})


def test_without_a_capture_the_program_takes_its_place():
    done = wrapped("--", sys.executable, "-c", "import sys; print('ran', sys.argv[1:]); sys.exit(5)", "--x")

    assert (5, "ran ['--x']") == (done.returncode, done.stdout.strip())


def test_in_a_capture_nsys_runs_in_a_folder_of_the_rank(tmp_path):
    fake = tmp_path / "nsys"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "NVIDIA Nsight Systems version 2025.3.1" && exit 0\n'
        '[ "$2" = --help ] && echo --trace && exit 0\nprintf "%s\\n" "$@"; exit 7\n'
    )
    fake.chmod(0o755)
    where = json.dumps({"nsys": str(fake), "folder": str(tmp_path), "watched": "ranges"})
    done = wrapped("--", "train.py", "--x", PERFGATE_RANK_CAPTURE=where, RANK="2")

    assert 7 == done.returncode, done.stderr
    assert (tmp_path / "rank-2").is_dir()
    assert ["train.py", "--x"] == done.stdout.split()[-2:]
    assert f"--output={tmp_path}/rank-2/profile" in done.stdout


@pytest.mark.parametrize(("report", "starts"), [(":", 2), ("touch ${word#--output=}.nsys-rep", 1)], ids=["none", "written"])
def test_an_nsys_that_never_started_the_program_is_started_once_more(tmp_path, report, starts):
    fake = tmp_path / "nsys"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "NVIDIA Nsight Systems version 2025.3.1" && exit 0\n'
        '[ "$2" = --help ] && echo --trace && exit 0\n'
        f"for word; do case $word in --output=*) {report} ;; esac; done\n"
        "echo started; exit 1\n"
    )
    fake.chmod(0o755)
    where = json.dumps({"nsys": str(fake), "folder": str(tmp_path), "watched": "ranges"})
    done = wrapped("--", "train.py", PERFGATE_RANK_CAPTURE=where, RANK="0")

    assert 1 == done.returncode, done.stderr
    assert starts == done.stdout.count("started")
    assert (starts == 2) == ("nsys did not start the program (exit 1): once more" in done.stderr)


def test_what_is_wrong_is_told_without_a_traceback():
    for arguments, said in (((), "no program"), (("--", "no-such-program-7f3a"), "can't start no-such-program-7f3a")):
        done = wrapped(*arguments)

        assert 2 == done.returncode
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_no_program_is_a_bad_request():
    with pytest.raises(UsageError, match="no program"):
        main(["--"])
