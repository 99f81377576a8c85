import sys
from datetime import date

import pytest

from perfgate.config import Config
from perfgate.errors import UnusableError, UsageError
from perfgate.program import dry_run, prepared
from perfgate.program.options import ProgramOptions
from perfgate.program.prepared import cards_of, program_budgets, ranks_in

PROGRAM = ProgramOptions(command=(sys.executable, "train.py"), mode_args=(("deterministic", ("--det",)),))


@pytest.fixture(autouse=True)
def no_card(monkeypatch):
    class Found:
        facts = "nsys"

    monkeypatch.setattr(prepared.NsysProfiler, "found", lambda: Found)
    monkeypatch.setattr(prepared, "fingerprint", lambda device: {"device": device})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py -n 4", 0),
        ("torchrun --nproc-per-node 4 train.py", 4),
        ("torchrun --nproc_per_node=8 --nnodes=2 train.py", 16),
        ("torchrun --nproc-per-node gpu train.py", 0),
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", 2),
        ("/opt/bin/srun -n 16 python train.py", 16),
        ("srun --ntasks=2 python -m perfgate.program.rank -- python train.py --nproc-per-node 9", 2),
        ("mpirun -np 3 python train.py", 3),
        ("srun -N 2", 0),
        ("mpirun -np", 0),
    ],
)
def test_ranks_that_a_launcher_names(command, expected):
    assert expected == ranks_in(command.split())


@pytest.mark.parametrize(
    ("device", "command", "ranks", "expected"),
    [
        ("cpu", "torchrun --nproc-per-node 4 train.py", 4, ["cpu"]),
        ("cuda:1", "python train.py", 0, ["cuda:1"]),
        ("cuda:0", "torchrun --nproc-per-node 4 train.py", 4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("cuda:0", "torchrun --nnodes 2 --nproc_per_node=2 train.py", 4, ["cuda:0", "cuda:1"]),
        ("cuda:0", "torchrun --nproc-per-node gpu train.py", 0, [f"cuda:{number}" for number in range(8)]),
        ("cuda:0", "srun -n 16 python train.py", 16, [f"cuda:{number}" for number in range(8)]),
        ("cuda:0", "./launch.sh", 2, ["cuda:0", "cuda:1"]),
        ("cuda:3", "torchrun --nproc-per-node 1 train.py", 1, ["cuda:0", "cuda:3"]),
    ],
)
def test_the_cards_of_all_ranks_are_locked_and_watched(device, command, ranks, expected):
    assert expected == list(cards_of(device, command.split(), ranks, 8))


def test_a_machine_whose_cards_nobody_can_count_has_the_one_that_is_named():
    assert ("cuda:0",) == cards_of("cuda:0", ["torchrun", "train.py"], 2, 0)


@pytest.mark.parametrize("gpu", [True, False])
def test_bundled_budgets_judge_the_step_without_a_profiler(gpu):
    step = program_budgets(gpu, "").find("step::")

    assert "step_wall" == step.metric
    assert (0.10, 0.05) == (step.overhead, step.goal) or not gpu


def test_a_file_without_a_budget_for_the_step_gets_ready_lines(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('version = 1\nmatch = ["x"]\n[defaults]\noverhead = "15%"\n')
    with pytest.raises(UnusableError, match="has no budget for the program's step") as error:
        program_budgets(True, str(file))

    lines = error.value.mend.partition("\n")[2]
    file.write_text(f"{file.read_text()}{lines}\n")
    step = program_budgets(True, str(file)).find("step::")

    assert ("step_wall", 0.10, 0.05) == (step.metric, step.overhead, step.goal)
    assert date.fromisoformat(step.expires) > date.today()


def test_an_expired_budget_of_the_step_is_said_to_be_one(tmp_path):
    file = tmp_path / "mine.toml"
    entry = '[[budget]]\nrange = "step"\noverhead = "5%"\nreason = "r"\nowner = "o"\nexpires = 2020-01-01\n'
    file.write_text(f'version = 1\nmatch = ["x"]\n[defaults]\noverhead = "15%"\n{entry}')
    with pytest.raises(UnusableError, match="only an expired budget"):
        program_budgets(True, str(file))


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ({"mode": "default"}, PROGRAM, "--mode default has no verdict"),
        ({"profiler": "torch"}, PROGRAM, "--profiler torch can't watch"),
        ({}, ProgramOptions(command=("no-such-program-7f3a",)), "there is no program 'no-such-program-7f3a'"),
        ({}, ProgramOptions(command=PROGRAM.command, match="("), "is not a regular expression"),
        ({}, ProgramOptions(command=(*PROGRAM.command, "--tp-comm-overlap")), "--tp-comm-overlap"),
        ({}, ProgramOptions(command=PROGRAM.command, metrics=__file__), "is there before any run"),
        ({}, ProgramOptions(command=PROGRAM.command, judge="champion"), "--judge champion"),
    ],
)
def test_bad_requests_are_refused_before_any_run(config, options, said):
    with pytest.raises(UsageError) as error:
        prepared.prepare(Config(device="cpu", **config), options)

    assert said in error.value.text


def test_dry_run_shows_arms_environments_order_and_runs():
    said = dry_run.describe(prepared.prepare(Config(device="cpu"), PROGRAM))

    assert f"default: {sys.executable} train.py\n" in said
    assert "deterministic (deterministic contract, judged): " in said
    assert " train.py --det\n" in said
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in said
    assert "a block: default deterministic deterministic default; every second one turned around" in said
    assert "24 runs: 12 under nsys for the ranges (3 blocks), 12 for the step's time (3 blocks); at most 600 s each" in said


def test_dry_run_of_few_profiled_blocks_and_per_rank():
    options = ProgramOptions(command=PROGRAM.command, profiled_blocks=1, per_rank=True, ranks=4)
    said = dry_run.describe(prepared.prepare(Config(device="cpu", max_blocks=6), options))

    assert "16 runs: 4 under nsys" in said
    assert "(3 blocks, up to 6 while a range is undecided)" in said
    assert "ranks: 4, nsys inside the launcher" in said
