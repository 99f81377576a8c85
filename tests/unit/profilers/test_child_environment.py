from __future__ import annotations

from pathlib import Path

import pytest

from perfgate.profilers.child_environment import ALLOWED, for_tools, for_worker, triton_cache, without_secrets


def test_nothing_but_the_list_gets_through(tmp_path: Path) -> None:
    inherited = {"PATH": "/bin", "HOME": str(tmp_path), "GITHUB_TOKEN": "t", "DATABASE_URL": "postgres://u:p@h", "FOO": "1"}
    environment = for_worker("default", run_folder=tmp_path, inherited=inherited)

    kept = {"TRITON_CACHE_DIR", "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"}
    assert {"PATH", "HOME", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"} | kept == set(environment)


@pytest.mark.parametrize("word", ["TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "PROXY", "URL", "USER"])
def test_no_allowed_name_can_hold_a_secret(word: str) -> None:
    assert [] == [name for name in ALLOWED if word in name]


def test_the_deterministic_arm_gets_the_contracts_variables(tmp_path: Path) -> None:
    environment = for_worker("deterministic", run_folder=tmp_path, inherited={"PATH": "/bin"})

    assert ":4096:8" == environment["CUBLAS_WORKSPACE_CONFIG"]


def test_the_default_arm_does_not_inherit_the_deterministic_ones(tmp_path: Path) -> None:
    inherited = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0", "NCCL_ALGO": "Ring"}
    environment = for_worker("default", run_folder=tmp_path, inherited=inherited)

    assert not set(inherited) & set(environment)


def test_tools_get_the_list_alone() -> None:
    assert {"PATH": "/bin"} == for_tools({"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s"})


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "db_password", "PGPASSWORD", "GOOGLE_APPLICATION_CREDENTIALS", "api_key"]
)
def test_a_users_command_loses_what_looks_like_a_secret(name: str) -> None:
    assert {"MASTER_ADDR": "h"} == without_secrets({"MASTER_ADDR": "h", name: "s"})


def test_the_triton_cache_is_the_users_own_where_one_is_set(tmp_path: Path) -> None:
    assert Path("/somewhere") == triton_cache(tmp_path, {"TRITON_CACHE_DIR": "/somewhere", "HOME": str(tmp_path)})


def test_the_triton_cache_outlives_the_run(tmp_path: Path) -> None:
    home = tmp_path / "home"

    assert home / ".cache/perfgate/triton" == triton_cache(tmp_path / "run", {"HOME": str(home)})


@pytest.mark.parametrize("home", ["", "/proc/nowhere"])
def test_the_triton_cache_is_in_the_run_where_there_is_no_home(tmp_path: Path, home: str) -> None:
    assert tmp_path / "run/triton-cache" == triton_cache(tmp_path / "run", {"HOME": home})


def test_flash_attention_keeps_its_kernels_unless_it_is_told_not_to(tmp_path: Path) -> None:
    inherited = {"HOME": str(tmp_path)}
    kept = for_worker("default", run_folder=tmp_path, inherited=inherited)
    refused = for_worker("default", run_folder=tmp_path, inherited=inherited | {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"})

    assert str(tmp_path / ".cache/perfgate/flash-attention") == kept["FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"]
    assert ("1", "0") == tuple(one["FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"] for one in (kept, refused))
