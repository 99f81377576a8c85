from dataclasses import replace

import pytest

from perfgate.errors import UsageError
from perfgate.gate import judged_again
from perfgate.model import Reason
from perfgate.store import load_result
from tests.unit.program.programs import BUDGETS, Gate, Launched, arms

SLOWER = {"deterministic": {"step": 1_200_000, "kernel": 500_000, "kernel_name": "gemm_ordered"}}
WITHIN = {"deterministic": {"step": 1_040_000, "kernel": 420_000, "kernel_name": "gemm_ordered"}}


@pytest.fixture
def gate(tmp_path, monkeypatch):
    def make(launched, text=BUDGETS, **options):
        return Gate(tmp_path, monkeypatch, launched, text, **options)

    return make


def codes(reasons):
    return [one.code for one in reasons]


def told(result, code):
    return [one for one in result.findings if one.code == code]


def the(result, op, implementation="deterministic"):
    return next(one for one in result.comparisons if (one.op, one.implementation) == (op, implementation))


def test_a_step_over_its_budget_fails_and_says_why(gate):
    result = gate(Launched(arms(**SLOWER)), blocks=3).run()
    step = the(result, "step")

    assert ("fail", 1) == (result.verdict.status, result.verdict.exit_code)
    assert ["OVER_BUDGET"] == codes(step.reasons)
    assert ("step_wall", 3, True) == (step.metric, step.blocks, step.judged)
    assert 1.2 == pytest.approx(step.ratio, rel=0.01)
    assert ["added gemm_ordered", "removed gemm"] == sorted(
        f"{part.kind} {part.kernel}" for part in step.contributions if part.kind in ("added", "removed")
    )
    assert step.delta_ns == sum(part.delta_ns for part in step.contributions)


def test_a_step_within_its_budget_passes_and_other_ranges_are_ranked(gate):
    result = gate(Launched(arms(**WITHIN))).run()
    layer = the(result, "layer")

    assert ("pass", 0) == (result.verdict.status, result.verdict.exit_code)
    assert (False, "skipped", "busy", 1) == (layer.judged, layer.status, layer.metric, layer.blocks)
    assert 1.05 == pytest.approx(layer.ratio, rel=0.01)


def test_what_match_finds_is_judged_too(gate):
    result = gate(Launched(arms(**SLOWER)), match="lay").run()

    assert ["OVER_BUDGET"] == codes(the(result, "layer").reasons)
    assert "budgets.toml:3" in the(result, "layer").reasons[0].text


def test_a_range_with_a_budget_of_its_own_is_judged_without_match(gate):
    entry = '[[budget]]\nrange = "layer"\noverhead = "50%"\nreason = "r"\nowner = "o"\nexpires = 2027-05-31\n'
    result = gate(Launched(arms(**WITHIN)), BUDGETS + entry).run()

    assert ("pass", "budgets.toml") == (the(result, "layer").status, the(result, "layer").budget.file.rpartition("/")[2])


def test_match_that_finds_nothing_names_the_ranges(gate):
    launched = Launched(arms())
    with pytest.raises(UsageError, match="--match 'laxer' finds no range") as error:
        gate(launched, match="laxer").run()

    assert "there are layer" in error.value.mend
    assert 1 == len(launched.ran)  # not after hours of running


def test_a_budget_that_matches_no_range_of_the_program_is_a_bad_request(gate):
    entry = '[[budget]]\nrange = "laxer"\noverhead = "50%"\nreason = "r"\nowner = "o"\nexpires = 2027-05-31\n'
    result = gate(Launched(arms(**WITHIN)), BUDGETS + entry).run()

    assert 2 == result.verdict.exit_code
    assert "did you mean" in next(one.next for one in result.findings if one.code == "UNMATCHED_BUDGET")


def test_a_judged_range_without_a_budget_is_no_pass_and_says_what_to_write(gate):
    result = gate(Launched(arms(**WITHIN)), BUDGETS.replace('overhead = "15%"', ""), match="layer").run()

    assert 5 == result.verdict.exit_code
    assert "layer:: has no budget" in told(result, "NOT_BUDGETED")[0].text
    assert '[[budget]] with range = "NAME"' in told(result, "NOT_BUDGETED")[0].next


def test_three_arms_run_forth_and_back_and_one_is_judged(gate):
    launched = Launched(arms(**SLOWER, champion={"step": 1_010_000, "kernel_name": "gemm_fast"}))
    result = gate(launched, mode_args=(("champion", ("-c",)),)).run()
    first = [name for name, watched in launched.ran if watched == "gpu"]

    assert ["default", "deterministic", "champion", "champion", "deterministic", "default"] == first
    assert ["default", "deterministic", "champion"] == [one.arm for one in result.program.arms]
    assert (True, "champion") == (the(result, "step", "champion").judged, the(result, "step", "champion").role)
    assert (False, "stock_deterministic") == (the(result, "step").judged, the(result, "step").role)


def test_a_program_that_records_its_steps_is_timed_bare(gate):
    launched = Launched(arms(**WITHIN))
    result = gate(launched).run()

    assert {"gpu", ""} == {watched for _, watched in launched.ran}
    assert ("host", (3, 12), 2, 12) == (result.program.clock, result.program.window, result.program.ranks, result.program.steps)
    assert "STEP_UNDER_NSYS" not in codes(result.findings)


def test_a_program_with_ranges_alone_is_timed_under_nsys_and_the_result_says_so(gate):
    launched = Launched(arms(**WITHIN), records=False)
    result = gate(launched).run()

    assert {"gpu", "ranges"} == {watched for _, watched in launched.ran}
    assert "nvtx" == result.program.clock
    assert "STEP_UNDER_NSYS" in codes(result.findings)
    assert 0 == result.verdict.exit_code


def test_without_profiled_blocks_the_step_alone_is_judged(gate):
    launched = Launched(arms(**WITHIN), facts=None)
    result = gate(launched, profiled_blocks=0).run()

    assert {""} == {watched for _, watched in launched.ran}
    assert [("step", "pass")] == [(one.op, one.status) for one in result.comparisons]


def test_without_nsys_and_without_recorded_steps_nothing_can_be_timed(gate):
    result = gate(Launched(arms(), records=False, facts=None), profiled_blocks=0).run()

    assert 6 == result.verdict.exit_code
    assert "does not use perfgate.steps" in result.verdict.text


def test_fewer_profiled_blocks_than_timed_ones(gate):
    launched = Launched(arms(**WITHIN))
    result = gate(launched, profiled_blocks=1, blocks=2, max_blocks=4).run()

    assert 4 == sum(watched == "gpu" for _, watched in launched.ran)
    assert (2, 1) == (the(result, "step").blocks, the(result, "layer").blocks)


def test_undecided_steps_get_more_timed_blocks_and_no_more_profiled_ones(gate):
    launched = Launched(arms(deterministic={"step": 1_101_500, "kernel_name": "gemm_ordered"}))
    result = gate(launched, max_blocks=2).run()

    assert 4 == sum(watched == "gpu" for _, watched in launched.ran)
    assert 8 == sum(watched == "" for _, watched in launched.ran)
    assert ("inconclusive", 4) == (result.verdict.status, result.verdict.exit_code)


def test_a_program_that_fails_in_one_arm_ends_the_run(gate):
    launched = Launched(arms(deterministic={"error": "arm deterministic: the program failed with exit status 3"}))
    result = gate(launched).run()

    assert 2 == len(launched.ran)
    assert ("error", 6, False) == (result.verdict.status, result.verdict.exit_code, result.run.complete)
    assert "exit status 3" in result.verdict.text


@pytest.mark.parametrize(("changes", "said"), [({"steps": 11}, "ran 11 steps, the first run 12"), ({"ranks": 1}, "1 ranks")])
def test_arms_must_do_the_same_work(gate, changes, said):
    result = gate(Launched(arms(deterministic=changes), records=False)).run()

    assert ("invalid", 5) == (result.verdict.status, result.verdict.exit_code)
    assert said in result.verdict.text


def test_a_mode_without_effect_is_no_pass(gate):
    result = gate(Launched(arms())).run()

    assert ("invalid", 5) == (result.verdict.status, result.verdict.exit_code)
    assert "NO_EFFECT" in codes(result.findings)


def test_metrics_that_differ_in_the_judged_arm_fail(gate):
    changes = {"deterministic": {**WITHIN["deterministic"], "loss": 0.5, "loss_differs_in": (2,)}, "default": {"loss": 0.25}}
    result = gate(Launched(arms(**changes))).run()
    bits = the(result, "step").bits

    assert 3 == result.verdict.exit_code
    assert (3, 1, 4, 0, 3) == (bits.replays, bits.differing, bits.processes, bits.default_differing, bits.default_replays)
    assert "step 0, loss, loss: 0.5 in the first run, 0.500000001 in confirm-" in bits.first_difference


def test_metrics_that_differ_in_the_default_alone_are_shown(gate):
    changes = {"default": {"loss": 0.5, "loss_differs_in": (1,)}, "deterministic": {**WITHIN["deterministic"], "loss": 0.5}}
    result = gate(Launched(arms(**changes))).run()

    assert 0 == result.verdict.exit_code
    assert {"METRICS_DIFFER", "METRICS_EQUAL"} <= set(codes(result.findings))
    assert 3 == result.program.arms[1].metric_values


def test_metrics_named_but_not_written_are_told(gate):
    result = gate(Launched(arms()), metrics="{run}/loss.csv").run()

    assert 5 == result.verdict.exit_code
    assert "left no metrics at {run}/loss.csv" in result.verdict.text


def test_throughput_and_peaks_stand_apart(gate):
    changes = {"default": {"allocated": 3000}, "deterministic": {**WITHIN["deterministic"], "allocated": 4000}}
    result = gate(Launched(arms(**changes)), tokens_per_step=1000).run()
    default, other = result.program.arms
    memory = the(result, "step").memory

    assert 1_000_000 == pytest.approx(default.tokens_per_second, rel=0.01)  # per millisecond of the slower rank
    assert (3000, 4000, 2) == (default.allocated_bytes, other.allocated_bytes, other.runs)
    assert (3000, 4000) == (memory.default_bytes, memory.deterministic_bytes)
    assert ["default: ", "deterministic: "] == [one.text[: one.text.index(": ") + 2] for one in told(result, "THROUGHPUT")]
    assert "; peak 2.93 KiB allocated, 2.93 KiB reserved (max over ranks)" in told(result, "THROUGHPUT")[0].text


def test_tokens_that_the_program_tells_are_those_of_all_ranks(gate):
    result = gate(Launched(arms(**WITHIN))).run()

    assert 200_000 == pytest.approx(result.program.arms[0].tokens_per_second, rel=0.01)


def test_the_slow_rank_is_named(gate):
    result = gate(Launched(arms(**WITHIN))).run()
    default = result.program.arms[0]

    assert [0, 1] == [one.rank for one in default.ranks]
    assert 2 == pytest.approx(default.ranks[0].step_ns / default.ranks[1].step_ns, rel=0.01)
    assert any("slowest is rank 0" in one.text for one in result.findings if one.code == "RANKS")


def test_a_memory_budget_without_peaks_is_not_measured(gate):
    text = BUDGETS.replace('overhead = "10%"', 'overhead = "10%"\nmemory = "10%"')
    changes = {"deterministic": {**WITHIN["deterministic"], "allocated": None}}
    result = gate(Launched(arms(**changes)), text).run()

    assert 5 == result.verdict.exit_code
    assert "INCOMPLETE" in codes(the(result, "step").reasons)


def test_gpu_work_that_the_capture_lost_is_no_figure(gate):
    changes = {"deterministic": {**WITHIN["deterministic"], "launches_lost": 6}}
    result = gate(Launched(arms(**changes)), match="layer").run()

    assert 6 == result.verdict.exit_code
    assert "have no GPU work in the capture" in the(result, "layer").reasons[0].text


def test_a_window_that_is_not_steady_is_moved_by_steps(gate):
    alike = {"steps": 24}
    result = gate(Launched(arms(default=alike, deterministic={**alike, "kernel_name": "x", "drift": 0.2}))).run()
    drift = [one for one in the(result, "step").signals if one.code == "DRIFT"]

    assert 1 == len(drift)
    assert "--steps" in drift[0].next


def test_steps_beyond_those_that_ran_are_a_bad_request(gate, tmp_path):
    with pytest.raises(UsageError, match="the program ran 12 steps"):
        gate(Launched(arms()), steps="3:20").run()

    assert not load_result(tmp_path / "run").run.complete


def test_a_window_of_a_few_steps_is_none(gate):
    with pytest.raises(UsageError, match="4 are needed"):
        gate(Launched(arms()), steps="3:6").run()


def guarded(monkeypatch, code, *, in_run):
    """The card's conditions: ``code`` met in the runs ``in_run`` alone, counted from 0."""
    readings = iter(range(1000))

    def guard(before, after):
        return (Reason(code, "the card was slowed down"),) if next(readings) in in_run else ()

    monkeypatch.setattr("perfgate.program.session.segment_guard", guard)


def test_a_block_whose_arms_met_unlike_conditions_is_made_up_for(gate, monkeypatch):
    guarded(monkeypatch, "THROTTLED", in_run=[5])  # the second timed run
    launched = Launched(arms(**WITHIN))
    result = gate(launched).run()

    assert 0 == result.verdict.exit_code
    assert 8 == sum(watched == "" for _, watched in launched.ran)
    assert (
        "block 1 does not count: only the deterministic arm: the card was slowed down" == told(result, "BLOCK_DROPPED")[0].text
    )
    assert {1} == {one.block for one in the(result, "step").default.samples if one.step_wall_ns}


def test_every_card_of_the_ranks_is_watched(gate, monkeypatch):
    """With two cards each run has two readings; the second card of the second timed run is slowed down."""
    monkeypatch.setattr("perfgate.program.session.segment", lambda card: card)
    guarded(monkeypatch, "THROTTLED", in_run=[2 * 5 + 1])
    result = gate(Launched(arms(**WITHIN)), cards=("cuda:0", "cuda:1")).run()

    assert (
        "block 1 does not count: only the deterministic arm: cuda:1: the card was slowed down"
        == told(result, "BLOCK_DROPPED")[0].text
    )


def test_another_card_slowed_in_each_arm_is_nothing_that_both_met(gate, monkeypatch):
    """The first card of the first timed run, of the default, and the second card of the second."""
    monkeypatch.setattr("perfgate.program.session.segment", lambda card: card)
    guarded(monkeypatch, "THROTTLED", in_run=[2 * 4, 2 * 5 + 1])
    result = gate(Launched(arms(**WITHIN)), cards=("cuda:0", "cuda:1")).run()

    assert (
        "block 1 does not count: only the default arm: cuda:0: the card was slowed down"
        == told(result, "BLOCK_DROPPED")[0].text
    )


def test_one_card_slowed_in_both_arms_drops_nothing(gate, monkeypatch):
    monkeypatch.setattr("perfgate.program.session.segment", lambda card: card)
    guarded(monkeypatch, "THROTTLED", in_run=[2 * 4 + 1, 2 * 5 + 1])
    result = gate(Launched(arms(**WITHIN)), cards=("cuda:0", "cuda:1")).run()

    assert not told(result, "BLOCK_DROPPED")
    assert ["cuda:1: the card was slowed down"] == [one.text for one in told(result, "THROTTLED")]


def test_an_arm_that_meets_the_cards_power_cap_pays_for_it(gate, monkeypatch):
    guarded(monkeypatch, "POWER_CAPPED", in_run=[5])
    launched = Launched(arms(**WITHIN))
    result = gate(launched).run()

    assert 8 == len(launched.ran)
    assert "slowed deterministic" in told(result, "POWER_CAPPED")[0].text


def test_the_stored_result_is_the_result(gate, tmp_path):
    made = gate(Launched(arms(**SLOWER)), html=True)
    result = made.run()
    stored = load_result(tmp_path / "run")

    assert (result.comparisons, result.program) == (stored.comparisons, stored.program)
    assert {"report.html", "leaderboard.csv", "result.json", "run.json"} <= {one.name for one in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize("changes", [SLOWER, WITHIN])
def test_judged_again_it_is_what_it_was(gate, tmp_path, changes):
    result = gate(Launched(arms(**changes)), match="layer").run()
    again = judged_again(result, thresholds=str(tmp_path / "budgets.toml"))

    assert (result.verdict.exit_code, result.verdict.counts) == (again.verdict.exit_code, again.verdict.counts)
    assert [one.status for one in result.comparisons] == [one.status for one in again.comparisons]


def test_judged_again_without_a_file_the_bundled_budgets_of_programs_count(gate, tmp_path):
    result = gate(Launched(arms(**SLOWER))).run()
    (tmp_path / "budgets.toml").unlink()
    again = judged_again(result)

    assert "thresholds/program.toml" == the(again, "step").budget.file


def test_judged_again_by_the_file_that_judged_it_where_that_is_still_there(gate, tmp_path, monkeypatch):
    result = gate(Launched(arms(**SLOWER))).run()
    monkeypatch.chdir(tmp_path)
    again = judged_again(result)

    assert "budgets.toml" == the(again, "step").budget.file


def with_a_budget_for(name, folder):
    file = folder / "budgets.toml"
    entry = f'\n[[budget]]\nrange = "{name}"\noverhead = "5%"\nreason = "r"\nowner = "o"\nexpires = 2099-01-01\n'
    file.write_text(file.read_text() + entry)
    return str(file)


def test_judged_again_a_run_without_ranges_owes_no_range_to_a_budget(gate, tmp_path):
    result = gate(Launched(arms(**WITHIN), facts=None), profiled_blocks=0).run()
    again = judged_again(result, thresholds=with_a_budget_for("layer", tmp_path))

    assert (result.verdict.exit_code, again.verdict.exit_code) == (0, 0)


def test_judged_again_a_profiled_run_owes_every_budget_a_range(gate, tmp_path):
    """A range that the program no longer opens must not fall out of the verdict, even where the step alone is left."""
    result = gate(Launched(arms(**WITHIN))).run()
    bare = replace(result, comparisons=tuple(one for one in result.comparisons if one.op == "step"))
    again = judged_again(bare, thresholds=with_a_budget_for("gone", tmp_path))

    assert 2 == again.verdict.exit_code
    assert "UNMATCHED_BUDGET" in codes(again.findings)
