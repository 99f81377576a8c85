import pytest

from tests.functional.cli import DATA, ROOT, perfgate

RUN = DATA / "runs" / "controls"


def test_bundled_budget_files_are_clean():
    done = perfgate("budget", "check")

    assert done.returncode == 0, done.stdout
    assert f"{len(list((ROOT / 'thresholds').glob('*.toml')))} files" in done.stdout
    assert "0 errors" in done.stdout


def test_broken_file_exits_with_2_and_names_the_line(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('version = 1\nmatch = ["X"]\n[[budget]]\nrange = "moe/nothing"\noverhaed = "1%"\n')
    done = perfgate("budget", "check", file)

    assert 2 == done.returncode
    assert "x.toml:5: unknown key budget.1.overhaed, did you mean overhead?" in done.stdout
    assert "x.toml:3: missing key budget.1.reason" in done.stdout


def test_pattern_that_matches_nothing_exits_with_2(tmp_path):
    file = tmp_path / "x.toml"
    entry = '[[budget]]\nrange = "moe/combined:*"\noverhead = "1%"\nreason = "r"\nowner = "o"\nexpires = 2099-01-01\n'
    file.write_text(f'version = 1\nmatch = ["X"]\n[defaults]\noverhead = "15%"\n{entry}')
    done = perfgate("budget", "check", file)

    assert 2 == done.returncode
    assert "x.toml:5: budget 'moe/combined:*' matches no registered range" in done.stdout


def test_suggest_of_something_else_is_a_usage_error(tmp_path):
    done = perfgate("budget", "suggest", tmp_path)

    assert 2 == done.returncode
    assert "result.json can't be read" in done.stderr
    assert "next: give a run directory" in done.stderr


@pytest.mark.parametrize("verb", [["budget"], ["budget", "suggest"]])
def test_without_arguments_it_explains_itself(verb):
    done = perfgate(*verb)

    assert 2 == done.returncode
    assert "Usage" in done.stdout + done.stderr
