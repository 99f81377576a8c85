"""What changed against a base: commits since the merge base, uncommitted and untracked files. Asks git."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import UsageError


@dataclass(frozen=True)
class Change:
    """One path that differs from the base. ``content`` is False for a pure rename or a change of mode alone."""

    path: str
    status: str  # A added, M modified, D deleted, R renamed
    content: bool


def changes(root: Path, base_ref: str) -> list[Change]:
    """Everything that differs between the merge base with ``base_ref`` and the working tree.

    Raises :class:`UsageError` where git, the reference or a common ancestor is missing (a shallow clone).
    """
    if base_ref.startswith("-"):
        raise UsageError(f"--base-ref {base_ref} is no reference")
    known = _asked(
        root, "rev-parse", "--verify", f"{base_ref}^{{commit}}", mend=f"git fetch origin {base_ref.removeprefix('origin/')}"
    )
    base = _asked(root, "merge-base", known.decode().strip(), "HEAD", mend="fetch the whole history (in CI: fetch-depth: 0)")
    raw = _asked(root, "diff", "--raw", "-z", "-M", "--no-abbrev", "--relative", base.decode().strip(), "--")
    untracked = _asked(root, "ls-files", "-z", "--others", "--exclude-standard")
    return [*_parsed(raw), *(Change(path, "A", True) for path in _paths(untracked))]


def _parsed(raw: bytes) -> list[Change]:
    found, fields = [], iter(_paths(raw))
    for head in fields:  # ":100644 100644 <old> <new> M", then the path; renames and copies have two
        _, _, old, new, status = head.split(" ")
        path = next(fields)
        if status[0] in "RC":
            path = next(fields)
        found.append(Change(path, "A" if status[0] == "C" else status[0], old != new))
    return found


def tracked_and_new(root: Path) -> list[str] | None:
    """Every file git tracks or would track below ``root``; ``None`` outside a git repository."""
    done = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
    return _paths(done.stdout) if done is not None and done.returncode == 0 else None


def _paths(output: bytes) -> list[str]:
    return [os.fsdecode(path) for path in output.split(b"\0") if path]


def _asked(root: Path, *arguments: str, mend: str = "run `git status` here") -> bytes:
    done = _git(root, *arguments)
    if done is None:
        raise UsageError("git is not installed", "install git, or leave --base-ref out")
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise UsageError(f"git {' '.join(arguments)}: {said}", mend)
    return done.stdout


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        return None
