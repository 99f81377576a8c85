import os
import subprocess
import sys

import pytest
import torch

from perfgate.determinism import contract
from perfgate.determinism.contract import STANDARD, ContractError, Variable
from perfgate.determinism.torch_flags import deterministic_algorithms, flags
from perfgate.errors import UsageError

NAMES = tuple(variable.name for variable in STANDARD.variables)


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    before = flags()
    yield
    assert before == flags()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_ALGO", "Ring"),
        ("NCCL_ALGO", "ring,CollnetDirect"),
        ("NCCL_ALGO", "^NVLS"),
        ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
        ("CUBLAS_WORKSPACE_CONFIG", ":16:8"),
        ("MAMBA_DETERMINISTIC", "1"),
        ("CAUSAL_CONV1D_DETERMINISTIC", "1.0"),
    ],
)
def test_accepted_values_pass(name, value):
    contract.check({name: value}, "deterministic")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_ALGO", "Tree"),
        ("NCCL_ALGO", "Ring,Tree"),
        ("NCCL_ALGO", ""),
        ("NCCL_ALGO", "Ring,"),
        ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1"),
        ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", ""),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8"),
        ("MAMBA_DETERMINISTIC", "0"),
        ("CAUSAL_CONV1D_DETERMINISTIC", ""),
    ],
)
def test_other_values_are_refused_and_named(name, value):
    with pytest.raises(ContractError) as raised:
        contract.check({name: value}, "deterministic")

    assert f"{name}={value!r}" in raised.value.text
    assert raised.value.mend == f"unset {name}"


def test_one_error_lists_every_violation():
    environ = {"NCCL_ALGO": "Tree", "CUBLAS_WORKSPACE_CONFIG": "0", "MAMBA_DETERMINISTIC": "1"}

    with pytest.raises(ContractError) as raised:
        contract.check(environ, "deterministic", options=["--tp-comm-overlap"])

    assert raised.value.text.count("\n  - ") == 3
    assert raised.value.mend == "unset NCCL_ALGO CUBLAS_WORKSPACE_CONFIG"


def test_the_default_arm_must_not_inherit_the_deterministic_one():
    with pytest.raises(ContractError, match="CUBLAS_WORKSPACE_CONFIG=:4096:8 belongs to the deterministic arm"):
        contract.check({"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Tree"}, "default")


def test_a_child_of_the_default_arm_keeps_what_is_the_users_own():
    child = contract.child_environment({"NCCL_ALGO": "Tree", "CUBLAS_WORKSPACE_CONFIG": ":16:8", "HOME": "/h"}, "default")

    assert child == {"NCCL_ALGO": "Tree", "HOME": "/h"}


def test_a_child_of_the_deterministic_arm_is_filled():
    child = contract.child_environment({"NCCL_ALGO": "CollnetChain"}, "deterministic")

    expected = {"NCCL_ALGO": "CollnetChain", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert expected == child


def test_variables_say_what_must_be_unset():
    assert dict.fromkeys(NAMES) == contract.variables("default")
    assert contract.variables("deterministic")["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_an_unknown_mode_is_an_error():
    with pytest.raises(UsageError, match="no mode 'fast'"):
        contract.variables("fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "refused"),
    [
        ("--tp-comm-overlap", True),
        ("--tp_comm_overlap", True),
        ("--tp-comm-overlap=true", True),
        ("model.tp_comm_overlap=True", True),
        ("++model.cross_entropy_loss_fusion=1", True),
        ("model.tp_comm_overlap=false", False),
        ("--no-tp-comm-overlap", False),
        ("tp-comm-overlap", False),
        ("--tp-comm-overlap-cfg=x.yaml", False),
    ],
)
def test_options_that_can_not_be_honoured_are_refused(option, refused):
    assert refused == bool(contract.refused_options([option], "deterministic"))
    assert not contract.refused_options([option], "default")


def test_apply_fills_and_is_idempotent():
    with contract.policy("deterministic") as first:
        second = contract.apply("deterministic")

        assert {"NCCL_ALGO", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUBLAS_WORKSPACE_CONFIG"} == set(first.filled)
        assert second.filled == {}
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not flags()["fill_uninitialized_memory"]
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_both_arms_are_set_explicitly(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with contract.policy("default") as applied:
            assert not torch.are_deterministic_algorithms_enabled()
            assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
            assert applied.removed == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)


def test_nested_modes_and_exceptions_restore_in_order():
    seen = []

    def inner():
        with contract.policy("default"):
            seen.append(("inner", torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
            raise ZeroDivisionError

    def outer():
        with contract.policy("deterministic", memory_fill=True):
            with pytest.raises(ZeroDivisionError):
                inner()
            seen.append(("outer", flags()["fill_uninitialized_memory"], os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        outer()

    expected = [("inner", False, None), ("outer", True, ":4096:8")]
    assert expected == seen
    assert not torch.are_deterministic_algorithms_enabled()


def test_nothing_is_changed_when_it_fails(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    before = flags()

    with pytest.raises(ContractError):
        contract.apply("deterministic")

    assert before == flags()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_an_initialised_cuda_refuses_a_change_but_not_what_is_already_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    with pytest.raises(ContractError, match=r"CUDA is already initialised.*CUBLAS_WORKSPACE_CONFIG"):
        contract.apply("deterministic")
    for name, value in contract.variables("deterministic").items():
        if value is not None:
            monkeypatch.setenv(name, value)
    with contract.policy("deterministic") as applied:
        assert applied.filled == {}


def test_variables_stay_when_cuda_was_initialised_meanwhile(monkeypatch):
    with contract.policy("deterministic"):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    for name in NAMES:
        os.environ.pop(name, None)


def test_a_project_extends_the_contract():
    own = STANDARD.extended([Variable("MY_DETERMINISTIC", "yes", "yes", "yes")], {"my-fusion": "it is racy"})

    assert contract.child_environment({}, "deterministic", own)["MY_DETERMINISTIC"] == "yes"
    with pytest.raises(ContractError, match="it is racy"):
        contract.check({}, "deterministic", options=["--my-fusion"], contract=own)


def test_deterministic_algorithms_alone_leaves_the_environment():
    with deterministic_algorithms(), deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_a_launcher_needs_no_torch():
    code = (
        "import sys; from perfgate.determinism import contract; contract.child_environment({}, 'deterministic'); "
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
