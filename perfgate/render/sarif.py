"""SARIF 2.1.0 for code scanning: one result per problem, on the budget's line in its thresholds file."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from perfgate import __version__
from perfgate.model import GateResult
from perfgate.render import _view
from perfgate.render._problems import Problem, problems
from perfgate.render._text import cut, visible

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LONGEST = 4000
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


def render(result: GateResult) -> str:
    """A log with one run. A run that could not be judged is ``executionSuccessful: false``, so that no result is no pass."""
    found = problems(result)
    codes = sorted({visible(problem.reason.code)[:100] for problem in found})
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "perfgate", "semanticVersion": __version__, "rules": [_rule(code) for code in codes]}},
        "invocations": [_invocation(result)],
        "columnKind": "unicodeCodePoints",
        "results": [_result(problem, codes) for problem in found],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(code: str) -> dict[str, Any]:
    return {"id": code, "shortDescription": {"text": code.replace("_", " ").capitalize()}}


def _invocation(result: GateResult) -> dict[str, Any]:
    made: dict[str, Any] = {
        "executionSuccessful": result.run.complete and result.verdict.status not in ("invalid", "error"),
        "commandLine": cut(visible(result.run.command), _LONGEST),
        "exitCode": result.verdict.exit_code,
        "exitCodeDescription": _view.verdict_sentence(result),
    }
    if _DATE.fullmatch(result.run.started):
        made["startTimeUtc"] = result.run.started.replace("+00:00", "Z")
    return made


def _result(problem: Problem, codes: list[str]) -> dict[str, Any]:
    code = visible(problem.reason.code)[:100]
    subject = problem.comparison.name if problem.comparison else "run"
    made: dict[str, Any] = {
        "ruleId": code,
        "ruleIndex": codes.index(code),
        "level": problem.level,
        "message": {"text": cut(visible(problem.text), _LONGEST) or code},
        "partialFingerprints": {"perfgate/v1": hashlib.sha256(ascii((code, subject)).encode()).hexdigest()},
    }
    place: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": cut(visible(subject), 300)}]}
    if problem.file:
        uri = re.sub(
            r"[^A-Za-z0-9._~/-]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), visible(problem.file)
        )
        place["physicalLocation"] = {"artifactLocation": {"uri": uri}, "region": {"startLine": problem.line}}
    made["locations"] = [place]
    return made
