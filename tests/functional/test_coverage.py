"""``perfgate coverage`` as a user runs it: exit codes, formats, and perfgate's own workloads."""

import json
import subprocess
import sys

import pytest

from tests.functional.cli import ROOT, perfgate

KERNEL = "import triton\n\n@triton.jit\ndef kernel(): ...\n"
TABLE = '[tool.perfgate.coverage]\nroots = ["pkg"]\nregistry = "kernels.toml"\n'
ENTRY = '[[kernel]]\nname = "k"\nkind = "triton"\nsources = ["pkg/k.py"]\ntests = ["tests/test_k.py"]\n'


@pytest.fixture
def repository(tmp_path):
    for path, text in {
        "pyproject.toml": TABLE,
        "kernels.toml": "version = 1\n" + ENTRY,
        "pkg/__init__.py": "",
        "pkg/k.py": KERNEL,
        "tests/test_k.py": "def test(): ...\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    git = ["git", "-C", str(tmp_path), "-c", "user.email=a@example.org", "-c", "user.name=A"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path


def test_clean_is_0_and_says_what_was_looked_at(repository):
    done = perfgate("coverage", cwd=repository)

    assert (0, "1 kernels registered, 1 kernel files among 2 files: clean\n") == (done.returncode, done.stdout)


def test_findings_are_1_whatever_their_number(repository):
    for number in range(3):
        (repository / f"pkg/new{number}.py").write_text(KERNEL)

    done = perfgate("coverage", cwd=repository / "pkg")

    assert done.returncode == 1
    assert "pkg/new0.py:3: UNREGISTERED: pkg/new0.py is a kernel file (triton: @triton.jit) that no entry" in done.stdout
    assert "3 findings" in done.stdout


def test_a_changed_kernel_is_1_and_exempt_makes_it_0_with_a_log(repository):
    (repository / "pkg/k.py").write_text(KERNEL + "# faster\n")

    assert perfgate("coverage", "--base-ref", "main", cwd=repository).returncode == 1
    done = perfgate("coverage", "--base-ref", "main", "--exempt", "comment only", "--format", "github", cwd=repository)

    assert done.returncode == 0
    assert "::notice file=pkg/k.py,title=perfgate coverage TEST_UNCHANGED::" in done.stdout
    assert "waived by --exempt: comment only" in done.stdout


def test_json_is_json(repository):
    content = json.loads(perfgate("coverage", "--format", "json", "--root", repository).stdout)

    assert (1, True, 1) == (content["schema_version"], content["clean"], content["kernels"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--format", "xml"),
        ("--base-ref", "nowhere"),
        ("--exempt", "reason without a base"),
        ("--base-ref", "main", "--exempt", " "),
        ("--root", "/"),
    ],
)
def test_configuration_errors_are_2(repository, arguments):
    done = perfgate("coverage", *arguments, cwd=repository)

    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""


def test_perfgates_own_workloads_are_covered():
    done = perfgate("coverage")

    assert (0, "") == (done.returncode, done.stderr), done.stdout


@pytest.mark.parametrize("verb", ["coverage", "env", "verify"])
def test_light_verbs_import_neither_torch_nor_pandas(verb):
    code = (
        "import sys, contextlib\n"
        "from perfgate.cli import main\n"
        f"sys.argv = ['perfgate', {verb!r}]\n"
        "with contextlib.suppress(SystemExit):\n    main()\n"
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 0
