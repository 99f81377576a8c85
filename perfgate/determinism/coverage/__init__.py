"""Which kernels of a repository are registered and tested, and the gate on pull requests that change one.

Plain CPU code over git and syntax trees: it imports neither torch nor pandas and runs on any checkout.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from perfgate.determinism.coverage.changes import Change, changes
from perfgate.determinism.coverage.config import CoverageConfig
from perfgate.determinism.coverage.kernels import Kernel, registered
from perfgate.determinism.coverage.scan import Scan, scan
from perfgate.errors import UsageError


@dataclass(frozen=True)
class Finding:
    """One breach of a rule, with the place and the next action."""

    code: str
    path: str
    line: int
    text: str
    mend: str


@dataclass(frozen=True)
class Coverage:
    """What ``perfgate coverage`` found; clean when ``findings`` is empty."""

    findings: tuple[Finding, ...]
    waived: tuple[Finding, ...]  # by --exempt or by an entry's own exempt_reason, logged with the reason in ``mend``
    files: int
    kernel_files: int
    kernels: int
    base_ref: str = ""
    changed: tuple[str, ...] = ()  # changed kernel files


def examine(config: CoverageConfig, *, base_ref: str = "", exempt: str = "") -> Coverage:
    """Checks the invariants and, with ``base_ref``, the rules for changed kernels.

    ``exempt`` is the reason that waives the changed-test rule; registration can't be waived.
    Raises :class:`UsageError` for a configuration under which nothing would be looked at.
    """
    if exempt and not base_ref:
        raise UsageError("--exempt waives the rule of a pull request: it needs --base-ref")
    kernels, seen = registered(config), scan(config)
    if seen.files == 0:
        raise UsageError(f"no code below {', '.join(config.roots)}: nothing would be checked", "mend roots")
    by_source: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        for source in kernel.sources:
            by_source.setdefault(source, []).append(kernel)
    findings = [*_unregistered(seen, by_source), *_unreadable(seen), *_broken_entries(config, kernels)]
    waived: list[Finding] = []
    changed: list[str] = []
    if base_ref:
        differing = changes(config.root, base_ref)
        touched = [one for one in differing if one.content and one.status != "D"]
        changed = [one.path for one in touched if one.path in seen.kernels or one.path in by_source]
        untested = list(_untested(changed, touched, by_source, base_ref, waived))
        if exempt:
            waived += [Finding(one.code, one.path, one.line, one.text, f"waived by --exempt: {exempt}") for one in untested]
        else:
            findings += untested
    key = lambda one: (one.path, one.line, one.code)  # noqa: E731
    return Coverage(
        tuple(sorted(findings, key=key)),
        tuple(sorted(waived, key=key)),
        seen.files,
        len(seen.kernels),
        len(kernels),
        base_ref,
        tuple(changed),
    )


def _unregistered(seen: Scan, by_source: dict[str, list[Kernel]]) -> list[Finding]:
    return [
        Finding(
            "UNREGISTERED",
            path,
            site.line,
            f"{path} is a kernel file ({site.kind + ': ' if site.kind else ''}{site.what}) that no entry registers",
            "register it with its tests, or with an exempt_reason",
        )
        for path, site in seen.kernels.items()
        if path not in by_source
    ]


def _unreadable(seen: Scan) -> list[Finding]:
    mend = "mend the file, or put it under exclude"
    return [Finding("UNREADABLE", path, 0, f"{path} can't be judged: {why}", mend) for path, why in seen.unreadable.items()]


def _broken_entries(config: CoverageConfig, kernels: list[Kernel]) -> list[Finding]:
    found = []
    for kernel in kernels:
        for what, path in chain((("source", path) for path in kernel.sources), (("test", path) for path in kernel.tests)):
            if not _exists(config, what, path):
                text = f"{kernel.name}: its {what} {path} does not exist"
                found.append(Finding("MISSING_PATH", kernel.declared, kernel.line, text, "mend the path, or drop it"))
        if not kernel.tests and not kernel.exempt_reason.strip():
            text = f"{kernel.name} has neither tests nor an exempt_reason"
            found.append(Finding("NO_TESTS", kernel.declared, kernel.line, text, "name the tests that replay it bit for bit"))
    return found


def _exists(config: CoverageConfig, what: str, path: str) -> bool:
    full = config.root / _file(path)
    return full.is_file() or (what == "test" and full.is_dir())


def _file(test: str) -> str:
    return test.partition("::")[0].rstrip("/")


def _untested(
    changed: list[str],
    touched: list[Change],
    by_source: dict[str, list[Kernel]],
    base_ref: str,
    waived: list[Finding],
) -> list[Finding]:
    """Changed kernel files none of whose tests changed too; those of exempt entries go to ``waived``."""
    paths = [one.path for one in touched]
    found = []
    for path in changed:
        entries = by_source.get(path, [])
        tests = list(dict.fromkeys(_file(test) for kernel in entries for test in kernel.tests))
        if not entries or any(other == test or other.startswith(f"{test}/") for test in tests for other in paths):
            continue
        names = ", ".join(kernel.name for kernel in entries)
        text = f"{path} ({names}) changed since {base_ref}, none of its tests did"
        if tests:
            mend = f"change one of {', '.join(tests)}, or give --exempt REASON"
            found.append(Finding("TEST_UNCHANGED", path, 0, text, mend))
        else:
            reasons = "; ".join(dict.fromkeys(kernel.exempt_reason for kernel in entries))
            waived.append(Finding("TEST_UNCHANGED", path, 0, text, f"exempt entry: {reasons}"))
    return found
