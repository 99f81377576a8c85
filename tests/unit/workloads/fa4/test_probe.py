import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from perfgate import discover

SHAPE = {"dim": 128, "heads": 16, "kv_heads": 4, "q_len": 257, "kv_len": 512, "causal": True, "window": None, "rule": "exact"}


@pytest.fixture
def probe():
    module = discover.module("attention.fa4.probe")
    module.packages.cache_clear()
    module.card.cache_clear()
    yield module
    module.packages.cache_clear()
    module.card.cache_clear()


def install(monkeypatch, versions):
    def version(name):
        if name in versions:
            return versions[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


def right(probe, **other):
    return {**dict.fromkeys(probe.ALSO, "1.0"), **probe.VERSIONS, **other}


def sources(probe, folder, body="return 1"):
    """A site folder that holds every function, class and method the hook builds on."""
    for path, names in probe.SOURCES.items():
        methods = {}
        for name in names:
            owner, _, method = name.rpartition(".")
            methods.setdefault(owner, []).append(method)
        text = "\n".join(f"def {name}():\n    {body}" for name in methods.pop("", []))
        for owner, inside in methods.items():
            text += f"\nclass {owner}:\n" + "\n".join(f"    def {name}(self):\n        {body}" for name in inside)
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def hopper(monkeypatch, capability=(9, 0), available=True):
    cuda = SimpleNamespace(is_available=lambda: available, get_device_capability=lambda device: capability)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, device=str))


def test_absent_packages_are_named_with_the_versions_that_work(probe, monkeypatch):
    install(monkeypatch, {})

    text = probe.unsupported("cuda", **SHAPE)

    assert text.startswith("needs flash-attn-4==4.0.0b36, quack-kernels==0.6.5, nvidia-cutlass-dsl==4.8.1 (pip install")
    assert "not installed: flash-attn-4, quack-kernels" in text


@pytest.mark.parametrize("package", ["apache-tvm-ffi", "einops", "torch-c-dlpack-ext", "quack-kernels"])
def test_one_absent_package_is_named(probe, monkeypatch, package):
    install(monkeypatch, {name: version for name, version in right(probe).items() if name != package})

    assert probe.packages().endswith(f"not installed: {package}")


@pytest.mark.parametrize("package", ["flash-attn-4", "quack-kernels", "nvidia-cutlass-dsl"])
def test_another_version_is_refused(probe, monkeypatch, package):
    install(monkeypatch, right(probe, **{package: "9.9"}))

    assert probe.packages().endswith(f"found {package} 9.9")


def test_sources_of_the_release_pass(probe, monkeypatch, tmp_path):
    install(monkeypatch, right(probe))
    sources(probe, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(probe, "DIGEST", probe.digest())
    hopper(monkeypatch)

    assert probe.unsupported("cuda:0", **SHAPE) == ""


def test_a_changed_method_is_refused(probe, monkeypatch, tmp_path):
    install(monkeypatch, right(probe))
    sources(probe, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(probe, "DIGEST", probe.digest())
    sources(probe, tmp_path, body="return 2")

    assert "the sources of flash-attn-4 or quack-kernels are not those of flash-attn-4==4.0.0b36" in probe.packages()


def test_a_method_that_is_gone_is_named(probe, monkeypatch, tmp_path):
    install(monkeypatch, right(probe))
    sources(probe, tmp_path)
    file = tmp_path / "flash_attn/cute/flash_bwd_sm90.py"
    file.write_text(file.read_text().replace("def mma_one_m_block", "def mma_two_m_blocks"))
    monkeypatch.syspath_prepend(tmp_path)

    assert probe.packages().endswith("flash_attn/cute/flash_bwd_sm90.py has no FlashAttentionBackwardSm90.mma_one_m_block")


def test_a_name_that_is_no_function_is_refused(probe, monkeypatch, tmp_path):
    install(monkeypatch, right(probe))
    sources(probe, tmp_path)
    (tmp_path / "flash_attn/cute/utils.py").write_text("import os as AuxData\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert "has no AuxData" in probe.packages()


def test_files_that_are_nowhere_are_named(probe, monkeypatch, tmp_path):
    install(monkeypatch, right(probe))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert probe.packages().endswith("flash_attn/cute/flash_bwd_sm90.py is on no import path")


@pytest.mark.parametrize(
    ("device", "capability", "available", "reason"),
    [
        ("cpu", (9, 0), True, "needs an NVIDIA Hopper GPU, not 'cpu'"),
        ("cuda", (9, 0), False, "needs an NVIDIA Hopper GPU: torch finds none"),
        ("cuda", (10, 0), True, "needs compute capability 9.x, found 10.0"),
        ("cuda", (8, 0), True, "needs compute capability 9.x, found 8.0"),
        ("cuda:1", (9, 0), True, ""),
    ],
)
def test_the_card_must_be_hopper(probe, monkeypatch, device, capability, available, reason):
    monkeypatch.setattr(probe, "packages", lambda: "")
    hopper(monkeypatch, capability, available)

    assert reason == probe.unsupported(device, **SHAPE)


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"rule": "sorted"}, "rule 'sorted'"),
        ({"dim": 96}, "head dimension 96"),
        ({"kv_heads": 3}, "16 query heads"),
        ({"kv_heads": 0}, "16 query heads"),
        ({"q_len": 0}, "16 query heads of 0 rows"),
        ({"window": 0}, "window 0"),
        ({"window": 64, "causal": False}, "window 64"),
    ],
)
def test_shapes_it_does_not_take_are_named_before_packages(probe, monkeypatch, other, part):
    monkeypatch.setattr(probe, "packages", lambda: "")
    hopper(monkeypatch)

    assert part in probe.unsupported("cuda", **{**SHAPE, **other})


def test_asking_imports_neither_torch_nor_flash_attn():
    code = (
        "import sys\nfrom perfgate import discover\nprobe = discover.module('attention.fa4.probe')\nprobe.packages()\n"
        "print([name for name in ('torch', 'triton', 'flash_attn', 'cutlass') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout


def test_workspace_counts_sums_rows_and_room_aside(probe):
    shape = {"batch": 2, "heads": 16, "kv_heads": 16, "q_len": 4096, "kv_len": 4096, "dim": 128}
    sums = 2 * 16 * 4096 * 128 * 4
    rows = 2 * 16 * 4096 * 4

    assert sums + 2 * rows == probe.workspace("atomic", **shape)
    assert sums + 2 * rows + 2 * 16 * 64 * 4 == probe.workspace("ordered", **shape)
    assert sums + 2 * rows == probe.workspace("exact", **shape)  # K and V are surveyed by the forward


@pytest.mark.parametrize(("dim", "rows"), [(128, 192), (64, 256)])
def test_workspace_pads_rows_to_the_tile_of_queries(probe, dim, rows):
    """Measured on an H200: 129 rows of 4 × 16 heads at dimension 128 take 6.09 MiB."""
    shape = {"batch": 4, "heads": 16, "kv_heads": 16, "q_len": 129, "kv_len": 129, "dim": dim}

    assert 4 * 4 * 16 * rows * (dim + 2) == probe.workspace("atomic", **shape)


def test_workspace_of_grouped_heads_holds_every_head_once_more(probe):
    shape = {"batch": 1, "heads": 8, "kv_heads": 2, "q_len": 256, "kv_len": 300, "dim": 64}
    atomic, exact = (probe.workspace(rule, **shape) for rule in ("atomic", "exact"))
    tile = 3 * 128 * 64 * 4

    assert (8 * 2 * tile) + 4 * 2 * 3 * 10 == exact - atomic


def test_workspace_holds_the_survey_where_the_forward_makes_none(probe):
    shape = {"batch": 1, "heads": 6, "kv_heads": 2, "q_len": 256, "kv_len": 300, "dim": 128}
    atomic, exact = (probe.workspace(rule, **shape) for rule in ("atomic", "exact"))
    tile = 3 * 128 * 128 * 4

    assert (6 * 2 * tile) + 4 * 2 * 64 * 2 + 4 * 6 * 256 + 4 * 2 * 3 * 8 == exact - atomic
    assert 0 == probe.survey_bytes(1, 6, 2, 256, 128)


@pytest.mark.parametrize(
    ("dim", "group", "expected"), [(128, 1, True), (128, 8, True), (128, 3, False), (64, 3, True), (64, 5, False)]
)
def test_the_forward_surveys_where_whole_groups_fill_its_blocks(probe, dim, group, expected):
    assert expected is probe.surveys(dim, group)


def test_survey_bytes_are_two_numbers_of_each_warp_of_the_blocks_that_survey(probe):
    assert 2 * 16 * 2 * 4 * 3 * 32 == probe.survey_bytes(2, 16, 16, 4096, 128)
    assert 2 * 4 * 2 * 4 * 3 * 64 == probe.survey_bytes(2, 16, 4, 4096, 128)
