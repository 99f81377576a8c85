"""``perfgate env`` as a launcher's shell uses it."""

import json
import os
import subprocess
import sys

import pytest

from tests.functional.cli import ROOT, perfgate

NAMES = (
    "NCCL_ALGO",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "CUBLAS_WORKSPACE_CONFIG",
    "MAMBA_DETERMINISTIC",
    "CAUSAL_CONV1D_DETERMINISTIC",
)


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def in_shell(script, **environment):
    command = f'perfgate() {{ {sys.executable} -m perfgate "$@"; }}\n{script}'
    everything = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=everything, cwd=ROOT)


def test_a_launcher_gets_the_variables_by_eval():
    done = in_shell(
        'set -e; eval "$(perfgate env)"; echo "$NCCL_ALGO $NVTE_ALLOW_NONDETERMINISTIC_ALGO $CUBLAS_WORKSPACE_CONFIG"'
    )

    assert (0, "Ring 0 :4096:8\n") == (done.returncode, done.stdout)


def test_what_is_set_and_accepted_stays():
    done = perfgate("env", CUBLAS_WORKSPACE_CONFIG=":16:8", MAMBA_DETERMINISTIC="1")

    assert "export CUBLAS_WORKSPACE_CONFIG=:16:8\nexport MAMBA_DETERMINISTIC=1\n" in done.stdout


def test_the_default_mode_unsets_what_it_must_not_inherit_and_keeps_the_users_own():
    done = perfgate("env", "--mode", "default", CUBLAS_WORKSPACE_CONFIG=":16:8", NCCL_ALGO="Tree")

    assert (0, "export NCCL_ALGO=Tree\nunset CUBLAS_WORKSPACE_CONFIG\n") == (done.returncode, done.stdout)


def test_it_fails_closed_in_the_shell_too():
    done = in_shell('set -e; eval "$(perfgate env)"; echo launched', NCCL_ALGO="Tree", MAMBA_DETERMINISTIC="0")

    assert done.returncode == 1
    assert "launched" not in done.stdout
    assert "NCCL_ALGO='Tree' is not a list of Ring" in done.stderr
    assert "MAMBA_DETERMINISTIC='0'" in done.stderr
    assert "next: unset NCCL_ALGO MAMBA_DETERMINISTIC" in done.stderr


def test_the_launched_commands_options_are_checked():
    done = perfgate("env", "--format", "json", "--", "torchrun", "pretrain.py", "--tp-comm-overlap")

    assert (2, "") == (done.returncode, done.stdout)
    assert "option --tp-comm-overlap: overlapped" in done.stderr


def test_json_and_table():
    content = json.loads(perfgate("env", "--format", "json").stdout)
    table = perfgate("env", "--format", "table", NCCL_ALGO="Ring")

    assert (":4096:8", None) == (content["CUBLAS_WORKSPACE_CONFIG"], content["MAMBA_DETERMINISTIC"])
    assert "will be :4096:8" in table.stdout


def test_a_projects_own_variables_are_read(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.perfgate.contract.variables.MINE]\naccepts = ["a b"]\nfill = "a b"\n')

    assert "export MINE='a b'\n" in perfgate("env", cwd=tmp_path).stdout


@pytest.mark.parametrize("arguments", [("--mode", "fast"), ("--format", "fish")])
def test_wrong_options_are_2(arguments):
    assert perfgate("env", *arguments).returncode == 2
