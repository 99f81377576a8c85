import os
import sys

import pytest

from perfgate.errors import UsageError
from perfgate.program import script


@pytest.fixture(autouse=True)
def untouched(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["perfgate"])
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERFGATE_MODE", raising=False)


@pytest.fixture
def applied(monkeypatch):
    modes = []
    monkeypatch.setattr(script, "apply", lambda mode, contract: modes.append(mode))
    return modes


def written(path):
    path.write_text(
        "import sys, pathlib\n"
        "pathlib.Path('seen').write_text('|'.join([__name__, *sys.argv, sys.path[0]]))\n"
        "if len(sys.argv) > 2: raise SystemExit(4)\n"
    )
    return path


@pytest.mark.parametrize("mode", ["default", "deterministic"])
def test_the_mode_is_in_force_before_the_script_runs(tmp_path, applied, monkeypatch, mode):
    monkeypatch.setenv("PERFGATE_MODE", mode)
    (tmp_path / "sub").mkdir()
    written(tmp_path / "sub" / "train.py")
    script.main(["sub/train.py", "--x"])

    assert [mode] == applied
    assert f"__main__|sub/train.py|--x|{tmp_path}/sub" == (tmp_path / "seen").read_text()


def test_without_a_mode_nothing_is_applied_and_exits_pass_through(tmp_path, applied):
    written(tmp_path / "train.py")
    with pytest.raises(SystemExit) as ended:
        script.main(["train.py", "a", "b"])

    assert (4, []) == (ended.value.code, applied)


def test_a_module(tmp_path, applied):
    written(tmp_path / "my_train_module.py")
    script.main(["-m", "my_train_module", "a"])
    name, program, argument, _ = (tmp_path / "seen").read_text().split("|")

    assert ("__main__", "my_train_module.py", "a") == (name, os.path.basename(program), argument)


@pytest.mark.parametrize("arguments", [[], ["none.py"], ["-m"]])
def test_no_script_is_a_bad_request(arguments, applied):
    with pytest.raises(UsageError, match="no script"):
        script.main(arguments)
