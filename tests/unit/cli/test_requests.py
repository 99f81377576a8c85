import pytest

from perfgate.cli._requests import requested
from perfgate.errors import UsageError

NOTHING = dict.fromkeys(
    ("config", "recipe", "recipe_size", "command", "op", "suite", "match", "mode_args", "blocks", "device", "profiled_blocks")
)


def asked(folder, **given):
    return requested({**NOTHING, **given}, folder)


def test_without_a_command_the_ops_are_run(tmp_path):
    request = asked(tmp_path, op=["a"], blocks=2)

    assert (None, ("a",), 2) == (request.program, request.config.op, request.config.blocks)


def test_with_a_command_the_program_is_run(tmp_path):
    request = asked(tmp_path, command=["train.py", "--x"], match="a", blocks=2)

    assert (("train.py", "--x"), "a", 2) == (request.program.command, request.program.match, request.config.blocks)


def test_a_file_may_hold_the_command_and_every_option(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('command = "train.py"\nblocks = 4\nprofiled-blocks = 1\ntimeout = 9\n')
    request = asked(tmp_path, config=str(file), blocks=5)

    assert (("train.py",), 1) == (request.program.command, request.program.profiled_blocks)
    assert (5, 9.0) == (request.config.blocks, request.config.timeout)


def test_unknown_keys_of_a_file_are_refused(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('comand = "train.py"\n')
    with pytest.raises(UsageError, match="unknown key 'comand'"):
        asked(tmp_path, config=str(file))
    with pytest.raises(UsageError, match="no such file"):
        asked(tmp_path, config="none.toml")


def test_pyprojects_table_for_programs_leaves_the_ops_alone(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.perfgate]\nblocks = 2\n[tool.perfgate.run]\nmatch = "a"\n')

    assert asked(tmp_path).program is None
    assert "a" == asked(tmp_path, command=["train.py"]).program.match


def test_options_of_the_other_kind_of_run_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--match needs a program"):
        asked(tmp_path, match="a")
    with pytest.raises(UsageError, match="--op chooses among the ops"):
        asked(tmp_path, op=["a"], command=["train.py"])
