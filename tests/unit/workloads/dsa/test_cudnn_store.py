"""The disk behind compiled kernels: found again by another process, never stale, never damaged, and it can be switched off."""

from __future__ import annotations

import pytest

from perfgate import discover

store = discover.module("dsa.cudnn.store")
KEY = ("scatter", "exact", 64, 512)


class Compiled:
    """What CuTe DSL's compiler returns, as far as it is used."""

    def __init__(self, code: bytes) -> None:
        self.code = code

    def export_to_c(self, path, *, function_name):
        with open(path, "wb") as file:
            file.write(self.code + function_name.encode())


class Broken:
    def export_to_c(self, path, *, function_name):
        raise ValueError("can't be exported")


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    monkeypatch.delenv("CUTE_DSL_DISABLE_FILE_CACHING", raising=False)
    monkeypatch.setattr(store, "load", lambda path: path.read_bytes())
    store.arch.cache_clear()
    store._digest.cache_clear()
    yield tmp_path / "kernels"
    store.arch.cache_clear()
    store._digest.cache_clear()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "hook.py"
    path.write_text("rounds = True\n")
    return path


def kept(source):
    return store.Kept("hooks", (source,))


def test_what_one_process_compiled_another_loads(place, source):
    kept(source)[KEY] = Compiled(b"code")

    other = kept(source)
    assert KEY in other
    assert b"codekernel" == other[KEY]
    assert (*KEY, "longer") not in other


def test_a_kernel_compiled_here_is_used_as_it_is(place, source):
    mine, compiled = kept(source), Compiled(b"code")
    mine[KEY] = compiled

    assert mine[KEY] is compiled


@pytest.mark.parametrize("change", ["source", "version", "arch", "kind"])
def test_nothing_stale_is_found(place, source, change, monkeypatch):
    kept(source)[KEY] = Compiled(b"code")
    store._digest.cache_clear()
    store.arch.cache_clear()
    kind = "hooks"
    if change == "source":
        source.write_text("rounds = False\n")
    elif change == "version":
        monkeypatch.setattr(store.probe, "NEEDED", {**store.probe.NEEDED, "nvidia-cutlass-dsl": "4.9.0"})
    elif change == "arch":
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    else:
        kind = "compile_cache"

    assert KEY not in store.Kept(kind, (source,))


def test_the_stock_kernels_source_is_part_of_the_name(place, source, monkeypatch, tmp_path):
    stock = tmp_path / "dsa_bwd_sm90.py"
    stock.write_text("class Kernel: ...\n")
    monkeypatch.setattr(store.probe, "source_file", lambda: stock)
    before = store.name_of(KEY, (source,))
    stock.write_text("class Kernel: pass\n")
    store._digest.cache_clear()

    assert before != store.name_of(KEY, (source,))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_compiled_again_and_replaced(place, source, damage):
    kept(source)[KEY] = Compiled(b"code")
    (path,) = place.glob("*.o")
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-1], "flipped": b"k" + content[1:], "empty": b""}[damage])

    again = kept(source)
    assert KEY not in again
    again[KEY] = Compiled(b"code")
    assert KEY in kept(source)
    assert [path] == list(place.glob("*"))


def test_a_file_that_cannot_be_loaded_is_told_and_compiled_again(place, source, monkeypatch):
    kept(source)[KEY] = Compiled(b"code")

    def load(path):
        raise RuntimeError("another linker")

    monkeypatch.setattr(store, "load", load)
    with pytest.warns(UserWarning, match="another linker"):
        assert KEY not in kept(source)


def test_what_cannot_be_written_is_told_and_runs_all_the_same(place, source):
    mine, compiled = kept(source), Broken()
    with pytest.warns(UserWarning, match="not kept on disk: can't be exported"):
        mine[KEY] = compiled

    assert mine[KEY] is compiled
    assert [] == list(place.glob("*"))


def test_the_switch_of_the_compiler_turns_it_off(place, source, monkeypatch):
    kept(source)[KEY] = Compiled(b"code")
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")

    assert KEY not in kept(source)
    kept(source)[(*KEY, "other")] = Compiled(b"code")
    assert 1 == len(list(place.glob("*")))


def test_without_a_folder_of_its_own_it_lies_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("CUTE_DSL_CACHE_DIR", raising=False)
    monkeypatch.delenv("CUTE_DSL_DISABLE_FILE_CACHING", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert tmp_path / "perfgate" / "cute" == store.folder()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    assert store.folder() is None
