"""What CIs read: GitHub's annotations, JUnit, SARIF, and the traces for Perfetto."""

import dataclasses
import json
import re
from xml.etree import ElementTree as ET

import pytest
from junitparser import JUnitXml
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as SarifLog

from perfgate.model import Reason, RunVerdict
from perfgate.render import FORMATS
from perfgate.render._problems import problems
from tests.unit.render import samples


def nothing_measured():
    reason = Reason("NOTHING_MEASURED", "nothing was judged", "perfgate run --dry-run")
    return samples.result([], verdict=RunVerdict("invalid", 5, {}, "nothing was judged", (reason,)))


def test_problems_come_worst_first_and_passing_ranges_have_none():
    found = problems(samples.mixed())

    assert [problem.reason.code for problem in found] == [
        "WORKLOAD_FAILED",
        "BITS_DIFFER",
        "NOT_BUDGETED",
        "OVER_BUDGET",
        "STRADDLES_BUDGET",
        "UNATTRIBUTED",
        "UNSUPPORTED",
    ]
    assert [problem.level for problem in found] == ["error"] * 4 + ["warning"] * 2 + ["note"]


def test_a_judged_one_that_did_not_pass_is_a_problem_even_without_a_reason():
    found = problems(samples.result([samples.comparison(status="fail", reasons=())]))

    assert [(problem.level, problem.reason.code) for problem in found] == [("error", "FAIL")]


def test_annotations_stand_on_the_budgets_line_and_escape_what_github_reads():
    lines = FORMATS["github"](samples.mixed()).splitlines()

    assert lines[3].startswith(
        "::error file=thresholds/h200.toml,line=12,title=perfgate OVER_BUDGET moe/permute%3Atypical%3Afwd::"
    )
    assert "+35.0 %25 is above the budget of +15 %25; next: perfgate run --op moe/permute" in lines[3]
    assert lines[-1].startswith("ERROR (exit 6): ")


def test_a_finding_that_names_its_place_is_anchored_there():
    finding = Reason("EXPIRED_BUDGET", "thresholds/h100.toml:40: budget 'moe/*' expired on 2026-01-01")

    assert "::warning file=thresholds/h100.toml,line=40,title=" in FORMATS["github"](samples.result(findings=(finding,)))


def test_no_name_can_start_a_command_of_its_own():
    lines = FORMATS["github"](samples.hostile()).splitlines()
    commands = [line for line in lines if line.startswith("::")]

    assert all(re.match(r"::(error|warning|notice) [^:]*::", line) for line in commands)
    assert all(not line.startswith("::") for line in lines if line not in commands)
    assert len([line for line in commands if line.startswith("::error")]) == 10
    assert any("more errors are in the step summary" in line for line in lines)


def test_junit_counts_what_a_ci_shows():
    suite = next(iter(JUnitXml.fromstring(FORMATS["junit"](samples.mixed()).encode())))

    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (9, 3, 2, 2)
    assert {case.name: [one.type for one in case.result] for case in suite}["typical:fwd:triton.gather"] == []


def test_junit_of_hostile_names_is_well_formed():
    root = ET.fromstring(FORMATS["junit"](samples.hostile()))  # noqa: S314 - our own text

    assert len(root.findall("testsuite/testcase/failure")) == len(samples.hostile().comparisons)


@pytest.mark.parametrize(("exit_code", "tag"), [(4, "failure"), (0, "skipped")])
def test_junit_never_passes_an_inconclusive_range(exit_code, tag):
    undecided = samples.comparison(status="inconclusive", reasons=(Reason("DRIFT", "drifts"),))
    verdict = RunVerdict("inconclusive", exit_code, {"inconclusive": 1}, "undecided")
    root = ET.fromstring(FORMATS["junit"](samples.result([undecided], verdict=verdict)))  # noqa: S314 - our own text

    assert [child.tag for child in root.findall("testsuite/testcase")[1] if child.tag != "system-out"] == [tag]


@pytest.mark.parametrize("make", [nothing_measured, lambda: incomplete(samples.result())])
def test_junit_and_sarif_of_a_run_that_proves_nothing_are_red(make):
    root = ET.fromstring(FORMATS["junit"](make()))  # noqa: S314 - our own text
    run = json.loads(FORMATS["sarif"](make()))["runs"][0]

    assert root.find("testsuite/testcase[@name='run']/error") is not None
    assert run["invocations"][0]["executionSuccessful"] is False
    assert run["results"][0]["level"] == "error"


def incomplete(result):
    return dataclasses.replace(result, run=dataclasses.replace(result.run, complete=False))


@pytest.mark.parametrize("make", [samples.result, samples.mixed, samples.on_cpu, samples.hostile, nothing_measured])
def test_sarif_fits_its_schema(make):
    log = SarifLog.model_validate_json(FORMATS["sarif"](make()))

    assert log.runs[0].tool.driver.name == "perfgate"


def test_sarif_points_at_the_budget_and_keeps_a_fingerprint_per_problem():
    results = json.loads(FORMATS["sarif"](samples.mixed()))["runs"][0]["results"]
    place = results[1]["locations"][0]["physicalLocation"]

    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("thresholds/h200.toml", 12)
    assert len({one["partialFingerprints"]["perfgate/v1"] for one in results}) == len(results)


def test_the_perfetto_trace_holds_every_operation_of_every_arm_once():
    events = json.loads(FORMATS["perfetto"](samples.mixed()))["traceEvents"]
    threads = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 6]
    gather = [e for e in events if e["ph"] == "X" and e["name"] == "gather_combine"]

    assert threads == ["torch.scatter_add_", "cuda.atomic", "triton.gather", "triton.segment", "torch.index_add_"]
    assert {(event["ts"], event["dur"]) for event in gather} == {(60.0, 422.1)}


def test_overlapping_operations_get_threads_of_their_own():
    base = samples.comparison()
    arm = dataclasses.replace(base.deterministic, timeline=(("a", 0, 100), ("b", 50, 150), ("c", 120, 130)))
    events = json.loads(FORMATS["perfetto"](samples.result([dataclasses.replace(base, deterministic=arm)])))["traceEvents"]
    rows = {event["name"]: event["tid"] for event in events if event["ph"] == "X" and event["name"] in "abc"}

    assert rows["a"] == rows["c"] == rows["b"] - 1


def test_markdown_beyond_the_limit_keeps_the_worst_and_counts_the_rest(monkeypatch):
    from perfgate.render import markdown

    monkeypatch.setattr(markdown, "LIMIT", 2400)
    text = markdown.render(samples.mixed())

    assert len(text.encode()) <= 2400
    assert "embedding/backward" in text
    assert re.search(r"\d more ranges, better than these", text)
