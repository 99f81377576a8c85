"""Ops are found in the bundle and in the user's folders; broken files are errors that name the file."""

import subprocess
import sys

import pytest

from perfgate.discover import BUNDLED, load, module, readable
from perfgate.errors import UsageError
from perfgate.skeleton import write_skeleton

SOUND = """
from perfgate import Op
op = Op("{name}")
op.cases(smoke=dict(rows=1))
op.inputs(lambda case, device, generator: {{}})
op.default("a")(lambda x: x)
op.champion("b")(lambda x: x)
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_bundled_ops_are_there_with_their_source():
    op = load().op("moe/combine")

    assert op.source.startswith("workloads/moe")
    assert not op.problems()


def test_a_folder_and_a_file_of_the_user(tmp_path):
    write(tmp_path / "tree/family/ops.py", SOUND.format(name="family/one"))
    file = write(tmp_path / "single.py", SOUND.format(name="family/two"))

    found = {op.name for op in load([str(tmp_path / "tree"), str(file)])}

    assert {"family/one", "family/two"} <= found


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="no workloads at"):
        load([str(tmp_path / "gone")])


def test_a_folder_without_ops(tmp_path):
    with pytest.raises(UsageError, match=r"no ops\.py below"):
        load([str(tmp_path)])


def test_a_broken_file_is_named(tmp_path):
    file = write(tmp_path / "broken.py", "import nothing_of_that_name\n")

    with pytest.raises(UsageError, match=r"broken\.py can't be imported: ModuleNotFoundError"):
        load([str(file)])


def test_a_file_that_exits_does_not_end_the_run_with_its_own_code(tmp_path):
    file = write(tmp_path / "leaves.py", "import sys\nsys.exit(0)\n")

    with pytest.raises(UsageError, match=r"leaves\.py can't be imported: SystemExit"):
        load([str(file)])


def test_an_op_declared_twice_names_both_files(tmp_path):
    first = write(tmp_path / "first.py", SOUND.format(name="family/op"))
    second = write(tmp_path / "second.py", SOUND.format(name="family/op"))

    with pytest.raises(UsageError, match=r"declared in first\.py and in second\.py"):
        load([str(first), str(second)])


def test_what_an_op_lacks_is_told_for_all_ops_together(tmp_path):
    file = write(tmp_path / "half.py", "from perfgate import Op\na = Op('x/a')\nb = Op('x/b')\n")

    with pytest.raises(UsageError) as caught:
        load([str(file)])

    assert "x/a" in caught.value.text
    assert "x/b" in caught.value.text


def test_modules_of_the_bundle_by_name():
    assert f"{BUNDLED}.comm.ops" == module("comm.ops").__name__


def test_paths_of_other_places_lose_their_folders(tmp_path):
    assert "ops.py" == readable(tmp_path / "somewhere" / "ops.py")


def test_listing_imports_neither_torch_nor_triton_nor_pandas():
    heavy = "[name for name in ('torch', 'triton', 'pandas') if name in sys.modules]"
    code = f"import sys; from perfgate.discover import load; load(); print({heavy})"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "[]\n" == printed


def test_the_skeleton_loads_and_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ops, test = write_skeleton("family/fresh_op", tmp_path / "workloads", tmp_path / "tests")

    assert "family/fresh_op" == load([str(tmp_path / "workloads")]).op("family/fresh_op").name
    assert test.is_file()
    with pytest.raises(UsageError, match="is there already"):
        write_skeleton("family/fresh_op", tmp_path / "workloads", tmp_path / "tests")
    assert ops.is_file()
