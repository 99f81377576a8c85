from pathlib import Path

import pytest

from perfgate.determinism.contract import STANDARD, ContractError
from perfgate.errors import UsageError
from perfgate.program.arms import arms_of, command_of, differences, environment_of, order
from perfgate.program.options import ProgramOptions

RUN = Path("/runs/1")
PROGRAM = ProgramOptions(
    command=("train.py", "--log={run}/loss.jsonl"),
    mode_args=(("deterministic", ("--det",)), ("champion", ("--det", "--fast"))),
    mode_env=(("champion", (("PLACE", "{run}/x"),)),),
)


def environment(arm, inherited=(), options=PROGRAM):
    return environment_of(arm, options, RUN, dict(inherited), STANDARD)


def test_roles_and_who_is_judged():
    default, deterministic, champion = arms_of(PROGRAM)

    assert ("default", "default", False) == (default.role, default.mode, default.judged)
    assert ("stock_deterministic", "deterministic", False) == (deterministic.role, deterministic.mode, deterministic.judged)
    assert ("champion", "deterministic", True) == (champion.role, champion.mode, champion.judged)


def test_two_arms_judge_the_deterministic_one():
    assert [False, True] == [arm.judged for arm in arms_of(ProgramOptions(command=("x",)))]


def test_another_arm_may_be_judged():
    options = ProgramOptions(command=("x",), mode_args=PROGRAM.mode_args, judge="deterministic")

    assert [("deterministic", "stock_deterministic")] == [(arm.name, arm.role) for arm in arms_of(options) if arm.judged]
    assert ["default", "stock_deterministic", "candidate"] == [arm.role for arm in arms_of(options)]
    for name in ("default", "nobody"):
        with pytest.raises(UsageError, match="no deterministic arm"):
            arms_of(ProgramOptions(command=("x",), judge=name))


def test_blocks_run_forth_and_back_and_turn_around():
    names = ["".join(arm.name[0] for arm in order(arms_of(PROGRAM), block)) for block in (0, 1, 2)]

    assert ["ddccdd", "cddddc", "ddccdd"] == names


def test_command_holds_the_arms_arguments_and_the_runs_folder():
    champion = arms_of(PROGRAM)[2]

    assert ["train.py", "--log=/runs/1/loss.jsonl", "--det", "--fast"] == command_of(champion, PROGRAM, RUN)


def test_environment_of_each_arm():
    inherited = {"PATH": "/bin", "HF_TOKEN": "secret", "NCCL_ALGO": "Ring", "PERFGATE_MODE": "old", "PERFGATE_PROFILED": "1"}
    default, _, champion = (environment(arm, inherited) for arm in arms_of(PROGRAM))

    assert "HF_TOKEN" not in default
    assert "NCCL_ALGO" not in default  # the deterministic arm's value is not inherited
    assert "PERFGATE_PROFILED" not in default
    assert ("default", "default", "/bin") == (default["PERFGATE_MODE"], default["PERFGATE_ARM"], default["PATH"])
    assert ("deterministic", "champion") == (champion["PERFGATE_MODE"], champion["PERFGATE_ARM"])
    assert (":4096:8", "/runs/1/x") == (champion["CUBLAS_WORKSPACE_CONFIG"], champion["PLACE"])
    assert ("/runs/1", "/runs/1/metrics", "/runs/1/steps", "step") == tuple(
        champion[f"PERFGATE_{name}"] for name in ("RUN_DIR", "METRICS_DIR", "STEPS_DIR", "STEP_RANGE")
    )


def test_the_contract_refuses_variables_and_options():
    deterministic = arms_of(PROGRAM)[1]
    with pytest.raises(ContractError, match="NCCL_ALGO='Tree'"):
        environment(deterministic, {"NCCL_ALGO": "Tree"})
    with pytest.raises(ContractError, match="--tp-comm-overlap"):
        environment(deterministic, options=ProgramOptions(command=("train.py", "--tp-comm-overlap")))


def test_the_default_must_not_be_given_what_is_the_other_arms():
    options = ProgramOptions(command=("x",), mode_env=(("default", (("NCCL_ALGO", "Ring"),)),))
    with pytest.raises(UsageError, match="--mode-env default=NCCL_ALGO=Ring"):
        environment(arms_of(options)[0], options=options)


def test_differences_name_what_was_changed_and_unset():
    arms = arms_of(ProgramOptions(command=("x",)))
    environments = {arm.name: environment(arm, {"NCCL_ALGO": "Tree"} if arm.name == "default" else {}) for arm in arms}
    found = differences(arms[1], arms[0], environments)

    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in found
    assert "NCCL_ALGO=Ring" in found
    assert ["NCCL_ALGO=Tree", "NVTE_ALLOW_NONDETERMINISTIC_ALGO unset"] == [
        one for one in differences(arms[0], arms[1], environments) if one.startswith(("NCCL", "NVTE"))
    ]
