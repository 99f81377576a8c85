"""The capability probe: versions, the hash of what is relied upon, device and shapes; never an import of the package."""

import importlib.metadata
import sys

import pytest

from perfgate import Case, discover

probe = discover.module("dsa.cudnn.probe")
forms = discover.module("dsa.cudnn.forms")
TYPICAL = {"queries": 16384, "keys": 16384, "heads": 64, "dim": 512, "topk": 2048}


def case(**changes):
    return Case("test", {**TYPICAL, **changes})


@pytest.fixture(autouse=True)
def fresh():
    for remembered in (probe.missing_packages, probe.changed):
        remembered.cache_clear()
    yield
    for remembered in (probe.missing_packages, probe.changed):
        remembered.cache_clear()


@pytest.fixture
def have(monkeypatch):
    """Plays what is installed."""
    versions = dict(probe.NEEDED)

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(probe, "version", version)
    return versions


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A package ``cudnn`` on the path whose kernel file has two of the methods."""
    path = tmp_path / "cudnn" / probe.SOURCE
    path.parent.mkdir(parents=True)
    (tmp_path / "cudnn" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    path.write_text(KERNEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(probe, "RELIED_UPON", {name: probe.digests(KERNEL)[name] for name in ("Kernel.scatter", "Kernel.run")})
    return path


KERNEL = '''
class Kernel:
    @jit
    def scatter(self, acc):
        """Adds."""
        red(acc)

    def run(self):
        self.scatter(1)

    def other(self):
        pass
'''


def test_the_versions_that_work_are_installed(have):
    assert "" == probe.missing_packages()
    assert probe.installed()


@pytest.mark.parametrize("name", probe.NEEDED)
def test_another_version_is_refused_and_the_one_that_works_named(name, have):
    have[name] = "0.9.9"

    assert f"needs {name}=={probe.NEEDED[name]} (0.9.9): pip install perfgate[cudnn]" == probe.missing_packages()
    assert not probe.installed()


def test_an_absent_package_is_refused_before_anything_else_is_asked(have):
    have.clear()

    for supports in (forms.supports_cudnn, forms.supports_exact, forms.supports_split_slice):
        assert "nvidia-cudnn-frontend==1.32.0 (not installed)" in supports(case(), "cuda:0")


def test_an_unchanged_source_is_accepted_without_importing_it(package):
    assert "" == probe.changed()
    assert "cudnn" not in sys.modules


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("red(acc)", "red(acc + 0)", "Kernel.scatter of the installed cuDNN frontend has changed"),
        ("scatter(self, acc)", "scatter(self, acc, hint)", "Kernel.scatter of the installed cuDNN frontend has changed"),
        ("def run(self)", "def start(self)", "Kernel.run of the installed cuDNN frontend is gone"),
    ],
)
def test_a_changed_method_is_unsupported_with_the_versions_that_work(old, new, said, package):
    package.write_text(KERNEL.replace(old, new))

    assert probe.changed().startswith(said)
    assert "nvidia-cudnn-frontend 1.32.0" in probe.changed()


def test_what_nobody_relies_upon_may_change(package):
    package.write_text(KERNEL.replace("pass", "return 7"))

    assert "" == probe.changed()


def test_a_missing_source_file_is_unsupported(package):
    package.unlink()

    assert probe.changed().startswith("cudnn/deepseek_sparse_attention")


def test_a_cpu_is_unsupported(have):
    assert "cuDNN's kernel needs a Hopper GPU" == probe.missing(case(), "cpu")


@pytest.mark.parametrize(("capability", "supported"), [((9, 0), True), ((8, 0), False), ((10, 0), False), ((12, 0), False)])
def test_only_compute_major_nine_is_supported(capability, supported, have, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    assert supported == (probe.missing(case(), "cuda:0") == "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dim": 64, "dim_v": 64}, "heads of 512 or 576"),
        ({"dim": 576, "dim_v": 576}, "values of 512"),
        ({"heads": 1}, "multiple of 4 heads"),
        ({"heads": 18}, "multiple of 4 heads"),
    ],
)
def test_shapes_that_the_kernel_cannot_take_are_refused(changes, said):
    assert said in probe.unfit(case(**changes))


@pytest.mark.parametrize("heads", [16, 64, 128])
@pytest.mark.parametrize("dim", [512, 576])
def test_shapes_that_it_takes(heads, dim):
    assert "" == probe.unfit(case(heads=heads, dim=dim))


def test_slices_refuse_equal_indices_and_a_workspace_that_holds_none(monkeypatch):
    monkeypatch.setattr(probe, "missing", lambda case, device: "")
    monkeypatch.setattr(probe, "changed", lambda: "")
    monkeypatch.setattr(forms, "_concurrent", lambda device: 132)

    assert "" == forms.supports_split_slice(case(), "cuda:0")
    assert "in either order" in forms.supports_split_slice(case(duplicates=True), "cuda:0")
    assert "max_workspace is 1000 bytes" in forms.supports_split_slice(case(max_workspace=1000), "cuda:0")


def test_exact_takes_at_most_two_per_cent_more_memory_than_stock_counting_its_gradients():
    gradients = 2 * (16384 * 64 * 512 + 16384 * 512)

    assert (forms.workspace_exact(case()) + gradients) / (forms.workspace_cudnn(case()) + gradients) < 1.001
    assert 16384 * 20 + 256 == forms.workspace_exact(case()) - forms.workspace_cudnn(case())
