"""A repository with one planted gap of every kind, and none more."""

import importlib
import json
import subprocess
import textwrap

import pytest

from perfgate.determinism.coverage import examine, views
from perfgate.determinism.coverage.config import default_roots, find_root, read_config
from perfgate.determinism.coverage.imports import reachable
from perfgate.errors import UsageError

scan_module = importlib.import_module("perfgate.determinism.coverage.scan")  # the package holds a function of that name

TRITON = "import triton\n\n@triton.jit\ndef kernel(): ...\n"
CONFIG = """
[tool.perfgate.coverage]
roots = ["pkg"]
kernel_directories = ["pkg/kernels"]
registry = "kernels.toml"
exclude = ["pkg/vendored/*"]
"""


class Repository:
    """Files and commits below one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.email", "someone@example.org")
        self.git("config", "user.name", "Someone")

    def git(self, *arguments):
        subprocess.run(["git", "-C", str(self.folder), *arguments], check=True, capture_output=True)

    def write(self, **files):
        """``pkg__a_py="text"`` writes pkg/a.py."""
        for key, text in files.items():
            self.put(key.replace("__", "/").replace("_py", ".py").replace("_toml", ".toml").replace("_cu", ".cu"), text)

    def put(self, path, text):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))

    def commit(self, message="more"):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message, "--allow-empty")

    def examine(self, **options):
        return examine(read_config(self.folder), **options)

    def codes(self, **options):
        return [(one.code, one.path, one.line) for one in self.examine(**options).findings]


def entry(name, source, tests=(), reason="", kind="triton"):
    lines = ["[[kernel]]", f'name = "{name}"', f"sources = {json.dumps([source])}", f"tests = {json.dumps(list(tests))}"]
    return "\n".join([*lines, f'kind = "{kind}"', f'exempt_reason = "{reason}"', ""])


def registry(*entries):
    return "version = 1\n" + "\n".join(entries)


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path)
    made.put("pyproject.toml", CONFIG)
    made.put("pkg/__init__.py", '"""Nothing."""\n')
    made.put("pkg/kernels/__init__.py", '"""Nothing."""\n')
    made.put("pkg/kernels/combine.py", TRITON)
    made.put("pkg/plain.py", "import triton  # @triton.jit\n'x.scatter_add_(0, i, y)'\n")
    made.put("pkg/vendored/theirs.py", TRITON)
    made.put("tests/test_combine.py", "def test(): ...\n")
    made.put("tests/helper.py", TRITON)
    made.put("kernels.toml", registry(entry("combine", "pkg/kernels/combine.py", ["tests/test_combine.py"])))
    made.commit("first")
    return made


def test_a_registered_and_tested_repository_is_clean(repository):
    seen = repository.examine()

    assert seen.findings == ()
    assert (4, 1, 1) == (seen.files, seen.kernel_files, seen.kernels)


def test_every_planted_gap_is_found_and_nothing_else(repository):
    repository.put("pkg/attention.py", "import torch\nfrom flash_attn import flash_attn_func\nflash_attn_func(1)\n")
    repository.put("pkg/scatter.py", "def f(x, i, y):\n    return x.scatter_add_(0, i, y)\n")
    repository.put("pkg/kernels/table.py", "SIZES = {}\n")
    repository.put("pkg/csrc/k.cu", "// x\n__global__ void k() {}\n")
    repository.put("pkg/old.py", "import triton\n@triton.jit\nprint 'x'\n")
    repository.put(
        "kernels.toml",
        registry(
            entry("combine", "pkg/kernels/combine.py", ["tests/test_combine.py"]),
            entry("moved", "pkg/kernels/moved.py", ["tests/test_moved.py"]),
            entry("untested", "pkg/kernels/combine.py"),
            entry("excused", "pkg/kernels/combine.py", reason="no deterministic form is known"),
        ),
    )

    expected = [
        ("MISSING_PATH", "kernels.toml", 10),
        ("MISSING_PATH", "kernels.toml", 10),
        ("NO_TESTS", "kernels.toml", 17),
        ("UNREGISTERED", "pkg/attention.py", 3),
        ("UNREGISTERED", "pkg/csrc/k.cu", 2),
        ("UNREGISTERED", "pkg/kernels/table.py", 0),
        ("UNREADABLE", "pkg/old.py", 0),
        ("UNREGISTERED", "pkg/scatter.py", 2),
    ]
    assert expected == repository.codes()


def test_a_changed_kernel_needs_a_changed_test(repository):
    repository.git("checkout", "-q", "-b", "work")
    repository.put("pkg/kernels/combine.py", TRITON + "# faster\n")

    assert repository.codes(base_ref="main") == [("TEST_UNCHANGED", "pkg/kernels/combine.py", 0)]  # uncommitted
    repository.commit()
    assert repository.codes(base_ref="main") == [("TEST_UNCHANGED", "pkg/kernels/combine.py", 0)]
    repository.put("tests/test_combine.py", "def test(): assert True\n")
    seen = repository.examine(base_ref="main")
    assert seen.findings == ()
    assert seen.changed == ("pkg/kernels/combine.py",)


def test_what_main_did_since_the_branch_is_not_this_branchs_change(repository):
    repository.git("checkout", "-q", "-b", "work")
    repository.git("checkout", "-q", "main")
    repository.put("pkg/kernels/combine.py", TRITON + "# on main\n")
    repository.commit()
    repository.git("checkout", "-q", "work")

    assert repository.examine(base_ref="main").changed == ()


def test_exempt_waives_the_changed_test_alone_and_is_logged(repository):
    repository.put("pkg/kernels/combine.py", TRITON + "# comment\n")
    repository.put("pkg/kernels/new.py", TRITON)

    seen = repository.examine(base_ref="main", exempt="only a comment")

    assert [(one.code, one.path) for one in seen.findings] == [("UNREGISTERED", "pkg/kernels/new.py")]
    assert [(one.path, one.mend) for one in seen.waived] == [("pkg/kernels/combine.py", "waived by --exempt: only a comment")]
    assert "only a comment" in views.as_text(seen)


def test_a_deleted_test_is_no_changed_test(repository):
    repository.put("tests/test_more.py", "def test(): ...\n")
    both = ["tests/test_combine.py", "tests/test_more.py"]
    repository.put("kernels.toml", registry(entry("combine", "pkg/kernels/combine.py", both)))
    repository.commit()
    repository.put("kernels.toml", registry(entry("combine", "pkg/kernels/combine.py", both[:1])))
    (repository.folder / both[1]).unlink()
    repository.put("pkg/kernels/combine.py", TRITON + "# changed\n")

    assert repository.codes(base_ref="HEAD") == [("TEST_UNCHANGED", "pkg/kernels/combine.py", 0)]


def test_a_pure_rename_needs_registration_but_no_test(repository):
    repository.git("mv", "pkg/kernels/combine.py", "pkg/kernels/merge.py")

    assert [code for code, _, _ in repository.codes(base_ref="HEAD")] == ["MISSING_PATH", "UNREGISTERED"]
    repository.put("kernels.toml", registry(entry("combine", "pkg/kernels/merge.py", ["tests/test_combine.py"])))
    assert repository.codes(base_ref="HEAD") == []


def test_a_deleted_kernel_must_leave_the_registry(repository):
    (repository.folder / "pkg/kernels/combine.py").unlink()

    assert repository.codes(base_ref="HEAD") == [("MISSING_PATH", "kernels.toml", 3)]


def test_an_exempt_entry_may_change_without_a_test_and_is_logged(repository):
    repository.put("kernels.toml", registry(entry("combine", "pkg/kernels/combine.py", reason="external")))
    repository.put("pkg/kernels/combine.py", TRITON + "# changed\n")

    seen = repository.examine(base_ref="HEAD")

    assert seen.findings == ()
    assert ["exempt entry: external"] == [one.mend for one in seen.waived]


def test_a_test_may_be_a_folder_or_a_node(repository):
    tests = ["tests/test_combine.py::test", "tests/more"]
    repository.put("tests/more/test_x.py", "def test(): ...\n")
    repository.put("kernels.toml", registry(entry("combine", "pkg/kernels/combine.py", tests)))
    repository.commit()
    repository.put("pkg/kernels/combine.py", TRITON + "# changed\n")
    repository.put("tests/more/test_x.py", "def test(): assert True\n")

    assert repository.codes(base_ref="HEAD") == []


def test_names_with_spaces_and_unicode_survive_git(repository):
    repository.put("pkg/kernels/größe neu.py", TRITON)

    assert [("UNREGISTERED", "pkg/kernels/größe neu.py", 3)] == repository.codes(base_ref="HEAD")


def test_github_annotations_are_escaped(repository):
    repository.put("pkg/kernels/a,b.py", TRITON)

    shown = views.as_github(repository.examine())

    assert shown.startswith(
        "::error file=pkg/kernels/a%2Cb.py,line=3,title=perfgate coverage UNREGISTERED::pkg/kernels/a,b.py is"
    )
    assert shown.endswith("1 kernels registered, 2 kernel files among 5 files: 1 finding")


def test_json_says_all(repository):
    content = json.loads(views.as_json(repository.examine()))

    assert (True, [], 4) == (content["clean"], content["findings"], content["files"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pyproject.toml": "[tool.perfgate.coverage]\nrotos = []\nregistry = 'x'\n"}, "unknown key 'rotos'"),
        ({"pyproject.toml": "[tool.perfgate.coverage]\nroots = ['pkg']\n"}, "registry is missing"),
        ({"pyproject.toml": "[tool.perfgate.coverage]\nregistry = 'kernels.toml'\nroots = ['gone']\n"}, "not there: gone"),
        ({"pyproject.toml": "[tool.perfgate.coverage]\nregistry = 'gone.toml'\n"}, "no registry gone.toml"),
        ({"pyproject.toml": "[tool.perfgate.coverage"}, "is no TOML"),
        ({"pyproject.toml": CONFIG + "patterns = {add = {magic = ['x']}}\n"}, "unknown kind 'magic'"),
        ({"pyproject.toml": CONFIG + "patterns = {remove = ['x.y']}\n"}, "'x.y', which is no default"),
        ({"pyproject.toml": CONFIG + "patterns = ['triton']\n"}, "patterns is malformed"),
        ({"kernels.toml": "version = 2\n"}, "needs version = 1"),
        ({"kernels.toml": "version = 1\n[[kernel]]\nname = 'a'\nkind = 'triton'\nsource = ['x']\n"}, "unknown key 'source'"),
        ({"kernels.toml": "version = 1\n[[kernel]]\nname = 'a'\nkind = 'triton'\n"}, "a: no sources"),
        ({"kernels.toml": "version = 1\n[[kernel]]\nname = 'a'\nkind = 'magic'\nsources = ['x']\n"}, "unknown kind 'magic'"),
        ({"kernels.toml": registry(entry("a", "x"), entry("a", "x"))}, "'a' is registered twice"),
        ({"kernels.toml": "version = 1\n[[kernel]]\nkind = 'triton'\n"}, "kernel 1 has no name"),
    ],
)
def test_a_wrong_configuration_is_a_usage_error(repository, change, message):
    for path, text in change.items():
        repository.put(path, text)

    with pytest.raises(UsageError) as raised:
        repository.examine()

    assert message in raised.value.text
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(("base", "message"), [("nowhere", "nowhere"), ("--help", "is no reference")])
def test_a_base_that_git_does_not_know_is_a_usage_error(repository, base, message):
    with pytest.raises(UsageError, match=message):
        repository.examine(base_ref=base)


def test_unrelated_histories_are_a_usage_error_that_names_the_mend(repository):
    repository.git("checkout", "-q", "--orphan", "other")
    repository.commit()

    with pytest.raises(UsageError) as raised:
        repository.examine(base_ref="main")

    assert "fetch-depth: 0" in raised.value.mend


def test_exempt_without_a_base_and_empty_roots_are_usage_errors(repository):
    with pytest.raises(UsageError, match="needs --base-ref"):
        repository.examine(exempt="x")
    repository.put("empty/README.md", "nothing")
    repository.put("pyproject.toml", CONFIG.replace('["pkg"]', '["empty"]').replace('["pkg/kernels"]', "[]"))
    with pytest.raises(UsageError, match="nothing would be checked"):
        repository.examine()


def test_every_file_in_a_kernel_directory_counts_but_prose(repository):
    for name in ("tiles.json", "fused.cu", "helpers.cuh", "README.md", "speed.svg", "empty.txt", ".gitignore", "py.typed"):
        repository.put(f"pkg/kernels/{name}", "" if name == "py.typed" else "{}\n")
    repository.put("pkg/settings.json", "{}\n")
    unregistered = {path for code, path, _ in repository.codes() if code == "UNREGISTERED"}

    assert {f"pkg/kernels/{name}" for name in ("tiles.json", "fused.cu", "helpers.cuh")} == unregistered


def test_a_file_that_is_named_beside_a_source_belongs_to_it(tmp_path):
    for name, text in (
        ("ops.py", "from . import tiles\n"),
        ("tiles.py", 'TABLE = Path(__file__).with_name("tiles.json")  # not "other.json"\n"""missing.json"""\n'),
        ("tiles.json", '["kernel.cu"]'),
        ("other.json", "{}"),
        ("kernel.cu", ""),
    ):
        (tmp_path / name).write_text(text)

    assert ("ops.py", "tiles.json", "tiles.py") == reachable(tmp_path, "ops.py")


def test_only_files_that_may_match_are_parsed(repository, monkeypatch):
    parsed = []

    def record(content, patterns):
        parsed.append(content)
        return []

    monkeypatch.setattr(scan_module, "call_sites", record)
    for number in range(50):
        repository.put(f"pkg/m{number}.py", f"import re, torch\nflags = re.compile('{number}').flags\ninput_ = 1\n")

    repository.examine()

    assert len(parsed) == 2  # the kernel, and plain.py with its comment


def test_default_roots_are_the_packages_and_setup(tmp_path):
    for path in ("a/__init__.py", "src/b/__init__.py", "tests/__init__.py", "scripts/x.py", "setup.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    assert default_roots(tmp_path) == ("a", "src/b", "setup.py")


def test_the_root_is_found_from_below(repository):
    assert repository.folder == find_root(repository.folder / "pkg" / "kernels")
    with pytest.raises(UsageError, match=r"no \[tool.perfgate.coverage\]"):
        find_root(repository.folder.parent)


def test_outside_git_every_file_is_walked(tmp_path):
    for path, text in {
        "pyproject.toml": CONFIG.replace('exclude = ["pkg/vendored/*"]', ""),
        "pkg/__init__.py": "",
        "pkg/kernels/combine.py": TRITON,
        "pkg/.hidden/x.py": TRITON,
        "pkg/venv/pyvenv.cfg": "",
        "pkg/venv/x.py": TRITON,
        "kernels.toml": registry(),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    found = [one.path for one in examine(read_config(tmp_path)).findings]
    assert found == ["pkg/kernels/combine.py"]
    with pytest.raises(UsageError, match="git"):
        examine(read_config(tmp_path), base_ref="main")
