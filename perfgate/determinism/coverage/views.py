"""The same result as text, JSON and GitHub annotations."""

from __future__ import annotations

import json
from dataclasses import asdict

from perfgate.determinism.coverage import Coverage, Finding

SCHEMA_VERSION = 1


def as_text(seen: Coverage) -> str:
    """For people: findings, what was waived, one line of counts."""
    lines = []
    for finding in seen.findings:
        lines += [f"{_place(finding)}: {finding.code}: {finding.text}", f"    next: {finding.mend}"]
    lines += [f"{_place(finding)}: {finding.code}: {finding.text}; {finding.mend}" for finding in seen.waived]
    return "\n".join([*lines, _summary(seen)])


def _summary(seen: Coverage) -> str:
    counts = f"{seen.kernels} kernels registered, {seen.kernel_files} kernel files among {seen.files} files"
    since = f", {len(seen.changed)} changed since {seen.base_ref}" if seen.base_ref else ""
    outcome = f"{len(seen.findings)} finding{'s' if len(seen.findings) != 1 else ''}" if seen.findings else "clean"
    return f"{counts}{since}: {outcome}"


def _place(finding: Finding) -> str:
    return f"{finding.path}:{finding.line}" if finding.line else finding.path


def as_json(seen: Coverage) -> str:
    """For programs; schema-versioned."""
    return json.dumps({"schema_version": SCHEMA_VERSION, "clean": not seen.findings, **asdict(seen)}, indent=1)


def as_github(seen: Coverage) -> str:
    """Workflow commands: errors for findings, notices for what was waived, then the line of counts."""
    commands = [_command("error", finding, f"{finding.text}. Next: {finding.mend}") for finding in seen.findings]
    commands += [_command("notice", finding, f"{finding.text}; {finding.mend}") for finding in seen.waived]
    return "\n".join([*commands, _summary(seen)])


def _command(level: str, finding: Finding, message: str) -> str:
    line = f",line={finding.line}" if finding.line else ""
    file = _escaped(finding.path).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} file={file}{line},title=perfgate coverage {finding.code}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
