"""pyproject.toml and the command line become one checked object."""

import pytest

from perfgate.config import Config, configure
from perfgate.errors import UsageError


def pyproject(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_command_line_wins_over_the_file(tmp_path):
    folder = pyproject(tmp_path, '[tool.perfgate]\nblocks = 5\nmax-blocks = 9\nop = ["a/b"]\ntimeout = 30\n')

    config = configure({"blocks": 7, "op": None, "case": ["smoke"]}, folder)

    assert (7, 9, ("a/b",), ("smoke",), 30.0) == (config.blocks, config.max_blocks, config.op, config.case, config.timeout)


def test_no_file_gives_the_defaults(tmp_path):
    assert Config() == configure({}, tmp_path)


def test_one_string_stands_for_a_list_of_one(tmp_path):
    folder = pyproject(tmp_path, '[tool.perfgate]\nworkloads = "kernels"\n')

    assert ("kernels",) == configure({}, folder).workloads


def test_sub_tables_of_others_are_left_alone(tmp_path):
    folder = pyproject(tmp_path, "[tool.perfgate.coverage]\nroots = []\n[tool.perfgate.contract]\n")

    assert Config() == configure({}, folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.perfgate]\nblokcs = 3\n", "unknown key 'blokcs'"),
        ("[tool.perfgate.coverege]\nroots = []\n", "unknown key 'coverege'"),
        ('[tool.perfgate]\nblocks = "3"\n', "blocks = '3'"),
        ("[tool.perfgate]\nblocks = true\n", "blocks = True"),
        ("[tool.perfgate]\nop = [1]\n", "op = [1]"),
        ("[tool.perfgate\n", "line 1"),
    ],
)
def test_bad_files_are_refused_with_their_name(tmp_path, text, said):
    with pytest.raises(UsageError) as caught:
        configure({}, pyproject(tmp_path, text))

    assert said in caught.value.text
    assert "pyproject.toml" in caught.value.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": float("nan")}, "timeout = nan"),
        ({"time_budget": float("inf")}, "time-budget = inf"),
        ({"device": "²"}, "device = '²'"),
        ({"replay_from": "runs/old"}, "replay-from = 'runs/old' (only with --profiler replay)"),
    ],
)
def test_options_that_would_be_ignored_or_break_later(options, said):
    with pytest.raises(UsageError) as caught:
        Config(**options)

    assert said in caught.value.text


def test_all_bad_options_are_named_together():
    with pytest.raises(UsageError) as caught:
        Config(mode="fast", replays=1, device="gpu", blocks=0)

    assert all(word in caught.value.text for word in ("mode", "replays", "device", "blocks"))
