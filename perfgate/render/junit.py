"""JUnit XML as Jenkins, GitLab, Azure and GitHub's report actions read it: one test case per judged range, one for the run."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from perfgate import units
from perfgate.model import Comparison, GateResult
from perfgate.render import _view
from perfgate.render._problems import said
from perfgate.render._text import cut, visible

_LONGEST = 4000


def render(result: GateResult) -> str:
    """A ``testsuites`` element. Fail and inconclusive are failures, invalid and error are errors, skipped and exempt skipped.

    Where the run was told to accept inconclusive ranges (exit code 0), they are skipped: never passed.
    """
    suite = ET.Element("testsuite", name="perfgate", timestamp=visible(result.run.started)[:19], hostname="", id="0")
    suite.append(_run_case(result))
    for group in _view.groups(result):
        for entry in group.entries:
            if entry.comparison.judged:
                suite.append(_case(entry.comparison, accepted=result.verdict.exit_code == 0))
    for exempt in result.exempt:
        case = ET.SubElement(suite, "testcase", classname="perfgate.exempt", name=cut(visible(exempt.op), 300), time="0")
        ET.SubElement(case, "skipped", message=cut(visible(exempt.reason), _LONGEST))
    counted = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    suites = ET.Element("testsuites", name="perfgate", time=f"{result.run.seconds:.3f}")
    for name, count in counted.items():
        suite.set(name, str(count))
        if name != "skipped":
            suites.set(name, str(count))
    suite.set("time", f"{result.run.seconds:.3f}")
    suites.append(suite)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _run_case(result: GateResult) -> ET.Element:
    """The run itself: an error where something beyond its comparisons decided the exit code."""
    case = ET.Element("testcase", classname="perfgate", name="run", time=f"{result.run.seconds:.3f}")
    reasons = [banner for banner in _view.banners(result) if banner.code not in ("CPU_FIGURES", "PROVISIONAL_BUDGET")]
    if reasons:
        lines = "\n".join(visible(f"{reason.code}: {said(reason)}") for reason in reasons)
        error = ET.SubElement(
            case, "error", message=cut(visible(reasons[0].text), _LONGEST), type=visible(reasons[0].code)[:100]
        )
        error.text = lines
    elif result.verdict.exit_code and not any(c.judged and c.status not in ("pass", "skipped") for c in result.comparisons):
        ET.SubElement(case, "error", message=_view.verdict_sentence(result), type=result.verdict.status)
    ET.SubElement(case, "system-out").text = _view.verdict_sentence(result)
    return case


def _case(comparison: Comparison, *, accepted: bool) -> ET.Element:
    time = _view.figure(comparison.deterministic, comparison.metric) or 0
    name = cut(visible(f"{comparison.case}:{comparison.phase}:{comparison.implementation}"), 300)
    classname = "perfgate." + cut(visible(comparison.op), 300).replace("/", ".")
    case = ET.Element("testcase", classname=classname, name=name, time=f"{time / 1e9:.9f}")
    tag = {"pass": "", "fail": "failure", "inconclusive": "failure", "skipped": "skipped"}.get(comparison.status, "error")
    if comparison.status == "inconclusive" and accepted:
        tag = "skipped"
    if tag:
        first = comparison.reasons[0] if comparison.reasons else None
        message = f"{comparison.status}: {first.text}" if first else comparison.status
        child = ET.SubElement(case, tag, message=cut(visible(message), _LONGEST))
        if tag != "skipped":
            child.set("type", visible(first.code if first else comparison.status)[:100])
        child.text = _told(comparison)
    return case


def _told(comparison: Comparison) -> str:
    budget = comparison.budget
    lines = [
        f"overhead {units.format_percent(units.overhead(comparison.ratio))}",
        f"interval {units.format_percent(units.overhead(comparison.ratio_low))}"
        f" to {units.format_percent(units.overhead(comparison.ratio_high))}",
        f"budget {units.format_limit(budget.overhead)} at {budget.file}:{budget.line}" if budget else "no budget",
        f"bits {_view.bits_words(comparison)}",
        *(f"{reason.code}: {said(reason)}" for reason in comparison.reasons),
    ]
    return "\n".join(cut(visible(line), _LONGEST) for line in lines)
