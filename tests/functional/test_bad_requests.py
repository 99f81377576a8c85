"""What a user gets wrong is told in one line with its mend, before anything runs."""

import os

import pytest

from tests.functional.cli import DATA, perfgate


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--op", "moe/combin"), "did you mean moe/combine"),
        (("--op", "moe/combine", "--case", "enormous"), "it has smoke"),
        (("--implementation", "triton.nothing"), "no implementation 'triton.nothing'"),
        (("--suite", "weekly"), "no case in suite 'weekly'"),
        (("--mode", "fast"), "mode = 'fast'"),
        (("--replays", "1"), "replays = 1"),
        (("--device", "7"), "no GPU 7"),
        (("--workloads", "nowhere"), "no workloads at nowhere"),
        (("--profiler", "replay", "--replay-from", "nowhere"), "nowhere is not a run directory"),
    ],
)
def test_a_bad_option_names_what_there_is(tmp_path, arguments, said):
    done = perfgate("run", "--device", "cpu", "--out", tmp_path / "run", *arguments)

    assert 2 == done.returncode
    assert said in done.stderr
    assert not (tmp_path / "run").exists()


def test_malformed_thresholds_name_their_line(tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("version = 1\nmatch = [\n")

    done = perfgate("run", "--device", "cpu", "--out", tmp_path / "run", "--thresholds", broken)

    assert 2 == done.returncode
    assert "broken.toml:" in done.stderr


def test_an_output_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "precious").write_text("data")

    done = perfgate("run", "--device", "cpu", "--out", tmp_path)

    assert 2 == done.returncode
    assert "nothing is overwritten" in done.stderr
    assert "data" == (tmp_path / "precious").read_text()


def test_an_output_folder_below_a_file_can_not_be_made(tmp_path):
    (tmp_path / "file").write_text("")

    done = perfgate("run", "--device", "cpu", "--out", tmp_path / "file" / "run")

    assert 2 == done.returncode
    assert "can't write to" in done.stderr


def test_a_malformed_project_file_is_named(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.perfgate]\nblokcs = 3\n")

    done = perfgate("run", "--device", "cpu", cwd=tmp_path)

    assert 2 == done.returncode
    assert "unknown key 'blokcs'" in done.stderr


def test_check_refuses_what_is_no_run(tmp_path):
    done = perfgate("check", tmp_path)

    assert 2 == done.returncode
    assert "can't be read" in done.stderr


def test_help_and_version_need_no_torch():
    listed = perfgate("--help")
    versioned = perfgate("--version", PYTHONPROFILEIMPORTTIME="1")

    assert 0 == listed.returncode
    for verb in ("run", "list", "check", "report", "doctor", "new-op", "ranges", "compare", "coverage", "verify"):
        assert verb in listed.stdout
    assert "perfgate 0." in versioned.stdout
    assert not any(f"| {name}{os.linesep}" in versioned.stderr for name in ("torch", "pandas", "triton"))


def test_dry_run_lists_what_would_run_and_runs_nothing(tmp_path):
    done = perfgate(
        "run", "--device", "cpu", "--workloads", DATA / "controls", "--op", "control/racy", "--dry-run", cwd=tmp_path
    )

    assert 0 == done.returncode
    assert "control/racy:smoke:fwd:random_order (champion)" in done.stdout
    assert "17 children" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('[defaults]\noverhead = "15%"\n[[budget]]\nrange = "moe/combin:*:fwd"\noverhead = "5%"\n', 2, "matches no registered"),
        (
            '[[budget]]\nrange = "moe/combine:*:fwd"\noverhead = "5%"\n',
            5,
            "segment/index_add:smoke:fwd has no budget",
        ),
    ],
)
def test_budgets_that_fit_nothing_or_leave_a_range_out_are_told_before_anything_runs(tmp_path, text, code, said):
    budgets = tmp_path / "budgets.toml"
    ending = 'reason = "r"\nowner = "o"\nexpires = 2099-01-01\n'
    budgets.write_text(f'version = 1\nmatch = ["*"]\n{text}{ending}')

    done = perfgate("run", "--device", "cpu", "--op", "segment/index_add", "--thresholds", budgets, "--out", tmp_path / "run")

    assert code == done.returncode, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "run").exists()
