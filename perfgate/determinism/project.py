"""A project's additions to the contract: ``[tool.perfgate.contract]`` of its pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from perfgate.determinism.contract import STANDARD, Contract, Variable
from perfgate.errors import UsageError

EXAMPLE = """[tool.perfgate.contract.variables.MYLIB_DETERMINISTIC]
accepts = ["1"]       # or pattern = "[1-9]"
fill = "1"            # leave it out to leave the variable unset
why = "mylib picks a racy kernel otherwise"

[tool.perfgate.contract.forbidden]
"--my-fusion" = "adds in arrival order" """


def contract_of(folder: Path) -> Contract:
    """The standard contract and what ``folder``'s pyproject.toml adds; the standard one where it adds nothing.

    Raises :class:`UsageError` that names every malformed entry.
    """
    table = _table(folder / "pyproject.toml")
    if not table:
        return STANDARD
    variables, forbidden = table.get("variables", {}), table.get("forbidden", {})
    problems = [f"unknown key {key!r}" for key in table if key not in ("variables", "forbidden")]
    if not isinstance(variables, dict) or not isinstance(forbidden, dict):
        problems.append("variables and forbidden are tables")
    else:
        problems += [problem for name, entry in variables.items() for problem in _problems(name, entry)]
        problems += [f"forbidden {name!r} needs its reason" for name, why in forbidden.items() if not _text(why)]
    if problems:
        raise UsageError(f"[tool.perfgate.contract]: {'; '.join(problems)}", f"for example:\n{EXAMPLE}")
    return STANDARD.extended([_variable(name, entry) for name, entry in variables.items()], forbidden)


def _table(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("perfgate", {}).get("contract", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is no TOML: {error}") from error
    if not isinstance(table, dict):
        raise UsageError("[tool.perfgate.contract] is no table", f"for example:\n{EXAMPLE}")
    return table


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _problems(name: str, entry: Any) -> list[str]:
    if not isinstance(entry, dict):
        return [f"{name} is no table"]
    found = [f"{name}: unknown key {key!r}" for key in entry if key not in ("accepts", "pattern", "fill", "why")]
    if ("accepts" in entry) == ("pattern" in entry):
        return [*found, f"{name}: give accepts or pattern"]
    accepts = entry.get("accepts", ["x"])
    if not isinstance(accepts, list) or not accepts or not all(isinstance(value, str) for value in accepts):
        return [*found, f"{name}: accepts is no list of strings"]
    try:
        variable = _variable(name, entry)
    except (re.error, TypeError) as error:
        return [*found, f"{name}: {error}"]
    if variable.canonical is not None and not variable.accepted(variable.canonical):
        found.append(f"{name}: fill {variable.canonical!r} is not accepted")
    return found


def _variable(name: str, entry: dict[str, Any]) -> Variable:
    pattern = entry.get("pattern") or "|".join(re.escape(value) for value in entry["accepts"])
    re.compile(pattern)
    fill = entry.get("fill")
    if fill is not None and not isinstance(fill, str):
        raise TypeError(f"fill {fill!r} is no string")
    accepts = f"a match of {pattern}" if "pattern" in entry else " or ".join(entry["accepts"])
    return Variable(name, pattern, accepts, fill, str(entry.get("why", "")))
