import pytest

from perfgate.errors import UsageError
from perfgate.program.options import ProgramOptions, configure_program


def test_command_line_alone(tmp_path):
    given = {
        "command": ("train.py",),
        "mode_args": ("deterministic=--det 'a b'",),
        "mode_env": ("champion=K=V=W",),
        "match": None,
    }
    options = configure_program(given, tmp_path)

    assert ("train.py",) == options.command
    assert (("deterministic", ("--det", "a b")),) == options.mode_args
    assert (("champion", (("K", "V=W"),)),) == options.mode_env
    assert "" == options.match


def test_files_then_command_line(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.perfgate.run]\nmatch = "a"\nsteps = "1:9"\n[tool.perfgate.run.mode-args]\ndeterministic = "--slow"\n'
    )
    file = tmp_path / "run.toml"
    file.write_text(
        'command = "torchrun train.py"\nsteps = "2:9"\nblocks = 5\n'
        '[mode-env.deterministic]\nA = "1"\n[mode-args]\nchampion = "-c"\n'
    )
    options = configure_program({"steps": "3:9", "mode_env": ("deterministic=B=2",)}, tmp_path, file)

    assert (("torchrun", "train.py"), "a", "3:9") == (options.command, options.match, options.steps)
    assert (("deterministic", (("A", "1"), ("B", "2"))),) == options.mode_env
    assert (("champion", ("-c",)),) == options.mode_args  # a file's table replaces that of the file before it


def test_arguments_of_one_arm_given_twice_are_joined(tmp_path):
    options = configure_program({"mode_args": ("deterministic=--a", "deterministic=--b 1")}, tmp_path)

    assert (("deterministic", ("--a", "--b", "1")),) == options.mode_args


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('matches = "a"', "unknown key 'matches'"),
        ('command = "train.py"', "may not name the command"),
        ("match = 3", "match = 3 should be like ''"),
        ("mode-args = 3", "mode-args is a table"),
        ('mode-env = {deterministic = "A"}', "mode-env is a table of tables"),
        ("per-rank = 1", "per-rank = 1 should be like False"),
        ("ranks = true", "ranks = True should be like 0"),
    ],
)
def test_strict_keys_in_pyproject(tmp_path, text, said):
    (tmp_path / "pyproject.toml").write_text(f"[tool.perfgate.run]\n{text}\n")
    with pytest.raises(UsageError) as error:
        configure_program({}, tmp_path)

    assert said in error.value.text
    assert error.value.mend


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode_args": ("deterministic",)}, "--mode-args deterministic"),
        ({"mode_args": ("deterministic='",)}, "No closing quotation"),
        ({"mode_env": ("deterministic=A",)}, "--mode-env deterministic=A"),
        ({"mode_env": ("deterministic=A B=1",)}, "'A B' is no variable's name"),
        ({"mode_args": ("a b=--x",)}, "'a b' is no name for an arm"),
        ({"steps": "11"}, "--steps 11"),
        ({"steps": "11:11"}, "holds no step"),
        ({"ranks": -1}, "ranks = -1"),
        ({"profiled_blocks": -2}, "profiled-blocks = -2"),
    ],
)
def test_bad_values_are_named(tmp_path, given, said):
    with pytest.raises(UsageError) as error:
        configure_program(given, tmp_path)

    assert said in error.value.text


@pytest.mark.parametrize(
    ("steps", "expected"),
    [("", (None, None)), ("11:41", (11, 41)), (":41", (None, 41)), ("11:", (11, None)), (" 1 : 2 ", (1, 2))],
)
def test_window(steps, expected):
    assert expected == ProgramOptions(steps=steps).window()
