"""DESIGN.md's import rules that import-linter can't see: which third-party packages each file may name, and where."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = sorted((ROOT / "perfgate").rglob("*.py"))
HEAVY = ("torch", "triton")
MAY_IMPORT_TORCH = ("worker/", "determinism/", "profilers/torch_profiler.py", "pytest_plugin.py", "controls/")
PANDAS_LIVES_IN = ("traces/", "measure/", "compare.py", "cli/ranges.py", "cli/compare.py", "estimate.py", "profilers/checks.py")
LIGHT_VERBS = ("list", "report", "coverage", "env", "history", "new_op", "doctor", "__init__", "_console")
MAY_PRINT = ("cli/", "render/")


def below(path, root=ROOT / "perfgate"):
    return path.relative_to(root).as_posix()


def imported(tree, *, top_level_only=False):
    """Names of imported top packages; those inside functions and TYPE_CHECKING blocks are left out on request."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not (top_level_only and not is_top_level(tree, node)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((name.partition(".")[0], node.lineno) for name in names)


def is_top_level(tree, wanted):
    return wanted in tree.body


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PACKAGE, ids=below)
def test_torch_and_triton_are_named_only_where_the_work_is_done(path):
    allowed = below(path).startswith(MAY_IMPORT_TORCH)

    found = [(name, line) for name, line in imported(parsed(path)) if name in HEAVY and not allowed]

    assert [] == found


@pytest.mark.parametrize("path", PACKAGE, ids=below)
def test_pandas_lives_between_traces_and_compare(path):
    found = [line for name, line in imported(parsed(path)) if name == "pandas" and not below(path).startswith(PANDAS_LIVES_IN)]

    assert [] == found


@pytest.mark.parametrize("path", sorted((ROOT / "workloads").rglob("ops.py")), ids=lambda path: below(path, ROOT))
def test_declarations_import_torch_only_inside_functions(path):
    found = [(name, line) for name, line in imported(parsed(path), top_level_only=True) if name in HEAVY]

    assert [] == found


@pytest.mark.parametrize("path", sorted((ROOT / "workloads").rglob("*.py")), ids=lambda path: below(path, ROOT))
def test_workloads_use_only_the_public_api(path):
    nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom) and not node.level]

    found = [node.module for node in nodes if (node.module or "").startswith("perfgate.")]

    assert [] == found


@pytest.mark.parametrize("path", PACKAGE, ids=below)
def test_only_the_command_line_prints_or_exits(path):
    calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    prints = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("print", "exit", "quit")]
    exits = [call.lineno for call in calls if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "sys.exit"]

    assert below(path).startswith(MAY_PRINT) or not prints + exits


@pytest.mark.parametrize("path", PACKAGE + sorted((ROOT / "workloads").rglob("*.py")), ids=lambda path: below(path, ROOT))
def test_files_stay_under_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", PACKAGE + sorted((ROOT / "workloads").rglob("*.py")), ids=lambda path: below(path, ROOT))
def test_every_module_says_what_it_is(path):
    tree = parsed(path)

    assert ast.get_docstring(tree) or not tree.body or path.name == "__init__.py"
