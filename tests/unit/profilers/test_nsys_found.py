from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.errors import ProfilerError
from perfgate.profilers import nsys_found
from perfgate.profilers.nsys_found import candidates, find_nsys, missing_libraries, probe

MakeNsys = Callable[..., Path]


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_one_that_is_named_comes_first(make_nsys: MakeNsys) -> None:
    nsys = make_nsys()

    assert nsys == find_nsys({"PERFGATE_NSYS": str(nsys), "PATH": os.environ["PATH"]})


def test_a_named_one_that_is_not_there_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(ProfilerError, match=r"PERFGATE_NSYS=.* is not a program"):
        find_nsys({"PERFGATE_NSYS": str(tmp_path / "nsys"), "PATH": os.environ["PATH"]})


def test_all_places_are_searched_in_order_and_the_newest_first(tmp_path: Path) -> None:
    on_path = program(tmp_path / "bin/nsys")
    root = tmp_path / "root"
    expected = [
        on_path,
        program(tmp_path / "cuda/bin/nsys"),
        program(root / "usr/local/cuda/bin/nsys"),
        program(root / "usr/local/cuda-12.10/bin/nsys"),
        program(root / "usr/local/cuda-12.9/bin/nsys"),
        program(root / "opt/nvidia/nsight-systems/2025.3.1/bin/nsys"),
        program(root / "opt/nvidia/nsight-systems/2024.10.1/bin/nsys"),
        program(root / "opt/nvidia/nsight-systems/2024.9.1/target-linux-x64/nsys"),
        program(root / "opt/nvidia/nsight-compute/2025.2.0/host/target-linux-x64/nsys"),
    ]
    environment = {"PATH": str(on_path.parent), "CUDA_HOME": str(tmp_path / "cuda")}

    assert expected == list(candidates(environment, root))


def test_none_anywhere_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_found, "candidates", lambda environment: iter([]))
    with pytest.raises(ProfilerError) as caught:
        find_nsys({})

    assert ("no nsys found", True) == (caught.value.text.split(":")[0], ".ci/install-nsys" in caught.value.mend)


def test_version_flags_and_importer_are_asked(make_nsys: MakeNsys) -> None:
    nsys = make_nsys(help_="echo '--trace= --sample= --env-var='")
    facts = probe(nsys)

    assert ("2025.3.1.90", True, False, "QdstrmImporter", "") == (
        facts.version,
        facts.offers("--env-var"),
        facts.offers("--discard-environment"),
        facts.importer.name if facts.importer else "",
        facts.importer_problem,
    )


@pytest.mark.parametrize(
    ("deeds", "text"),
    [
        ({"version": "echo no numbers"}, "names no version"),
        ({"version": "echo cannot open shared object >&2; exit 127"}, "cannot open shared object"),
        ({"help_": "echo usage"}, "lists no --trace"),
        ({"version": "kill -9 $$"}, r"failed \(exit -9\)"),
    ],
)
def test_an_nsys_that_does_not_work_is_named(make_nsys: MakeNsys, deeds: dict[str, str], text: str) -> None:
    with pytest.raises(ProfilerError, match=text):
        probe(make_nsys(**deeds))


def test_an_nsys_that_hangs_is_named(make_nsys: MakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_found, "PROBE_SECONDS", 0.5)
    with pytest.raises(ProfilerError, match="gave no answer"):
        probe(make_nsys(version="exec sleep 60"))


def test_a_missing_importer_is_told_with_its_mend(make_nsys: MakeNsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nsys_found, "DEBIAN", tmp_path / "nothing")
    facts = probe(make_nsys(importer=None))

    assert (None, True, nsys_found.INSTALL_HOST) == (
        facts.importer,
        facts.importer_problem.startswith("no QdstrmImporter beside"),
        facts.importer_mend,
    )


def test_an_importer_that_lies_elsewhere_is_used_and_the_link_told(
    make_nsys: MakeNsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "usr/lib/nsight-systems/host-linux-x64/QdstrmImporter"
    program(elsewhere)
    monkeypatch.setattr(nsys_found, "DEBIAN", elsewhere.parent.parent)
    nsys = make_nsys(importer=None)
    facts = probe(nsys)

    assert (elsewhere, f"ln -sfn {elsewhere.parent} {nsys.parent.parent / 'host-linux-x64'}") == (
        facts.importer,
        facts.importer_mend,
    )


def test_the_library_that_an_importer_lacks_is_named_with_its_package(
    make_nsys: MakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = make_nsys()
    (nsys.parent.parent / "host-linux-x64/QdstrmImporter").write_text("#!/bin/sh\nexit 127\n")
    monkeypatch.setattr(nsys_found, "missing_libraries", lambda program: ("libdw.so.1", "libfoo.so.3"))
    facts = probe(nsys)

    assert (None, "the importer lacks libdw.so.1, libfoo.so.3", True) == (
        facts.importer,
        facts.importer_problem,
        "sudo apt-get install libdw1 libfoo.so.3" in facts.importer_mend,
    )


def test_an_importer_that_fails_for_no_known_reason_is_quoted(make_nsys: MakeNsys) -> None:
    nsys = make_nsys()
    (nsys.parent.parent / "host-linux-x64/QdstrmImporter").write_text("#!/bin/sh\necho wrong moon >&2\nexit 3\n")

    assert "the importer does not start: wrong moon" == probe(nsys).importer_problem


def test_missing_libraries_are_read_from_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ldd = program(tmp_path / "bin/ldd")
    ldd.write_text("#!/bin/sh\nprintf '\\tlibdw.so.1 => not found\\n\\tlibc.so.6 => /lib/libc.so.6 (0x1)\\n'\n")
    monkeypatch.setenv("PATH", f"{ldd.parent}:{os.environ['PATH']}")

    assert ("libdw.so.1",) == missing_libraries(tmp_path / "program")
