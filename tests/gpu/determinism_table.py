"""The table of differing replays: stock torch ops in both modes, plain and under contention.

    python tests/gpu/determinism_table.py reports/h200/determinism
    python tests/gpu/determinism_table.py OUT --device cpu --tiny      # only proves that it runs

Each mode runs in a fresh process under its own policy. Writes ``table.json`` and ``README.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed

from perfgate.determinism import contract

MODES = ("default", "deterministic")
REFUSALS = ("deterministic", "No available kernel", "No viable backend")  # in torch's own messages


def main() -> int:
    """Runs both arms and writes the table; a child process (``--mode``) runs one arm and prints its rows."""
    options = _options()
    if options.mode:
        _arm(options)
        return 0
    began = time.monotonic()
    arms = {mode: _start(mode, options) for mode in MODES}
    result = {
        "schema_version": 1,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": "python tests/gpu/determinism_table.py " + " ".join(sys.argv[1:]),
        "seconds": round(time.monotonic() - began, 1),
        "environment": arms["default"]["environment"],
        "policies": {mode: arm["policy"] for mode, arm in arms.items()},
        "rows": [row for arm in arms.values() for row in arm["rows"]],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    (options.out / "README.md").write_text(markdown(result))
    failed = sorted({row["op"] for row in result["rows"] if "failed" in row})
    sys.stderr.write(f"wrote {options.out}/table.json and README.md after {result['seconds']} s; failed: {failed or 'none'}\n")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for table.json and README.md")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes")
    parser.add_argument("--replays", type=int, default=20, help="runs compared with the first (20)")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    return parser.parse_args()


def _start(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One arm in a fresh process with the mode's own environment."""
    command = [sys.executable, __file__, *sys.argv[1:], "--mode", mode]
    environment = contract.child_environment(os.environ, mode)  # type: ignore[arg-type]
    child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(child.stdout)  # type: ignore[no-any-return]


def _arm(options: argparse.Namespace) -> None:
    with contract.policy(options.mode) as applied:
        import torch
        from stock_ops import stock_ops

        warnings.simplefilter("ignore")  # refused contention is in the rows' notes
        rows = []
        for op in stock_ops():
            for contended in (False, True):
                row = _row(op, options, contended)
                sys.stderr.write(f"{options.mode:13} {row['op']}: {_cell(row)}, {row['seconds']} s\n")
                rows.append(row)
        policy = {"variables": dict(applied.in_force), "torch": dict(applied.torch_flags)}
        json.dump({"environment": _environment(torch, options), "policy": policy, "rows": rows}, sys.stdout)


def _row(op: Any, options: argparse.Namespace, contended: bool) -> dict[str, Any]:
    """One op in one mode. A refusal (no deterministic implementation, no kernel) is told in the library's own words."""
    import torch

    from perfgate.determinism.replay import replay

    row: dict[str, Any] = {"op": op.name, "mode": options.mode, "contention": contended, "shape": ""}
    began = time.monotonic()
    try:
        subject = op.make(options.device, options.tiny)
        row["shape"] = subject.shape
        seen = replay(
            subject.call, subject.inputs, replays=options.replays + 1, backward=subject.backward, contention=contended
        )
        row |= {"compared": seen.compared, "differing": seen.differing, "first_difference": seen.first_difference}
        row |= {"side_launches": seen.side_launches, "notes": list(seen.notes)}
    except RuntimeError as error:
        told = str(error).strip().splitlines()[0]
        row["refused" if any(word in told for word in REFUSALS) else "failed"] = told
    row["seconds"] = round(time.monotonic() - began, 2)
    if options.device.startswith("cuda"):
        torch.cuda.empty_cache()
    return row


def _environment(torch: Any, options: argparse.Namespace) -> dict[str, Any]:
    found = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu",
        "shapes": "tiny" if options.tiny else "full",
        "replays": options.replays,
    }
    if options.device.startswith("cuda"):
        from pynvml import nvmlInit, nvmlSystemGetDriverVersion

        nvmlInit()
        found |= {
            "device": torch.cuda.get_device_name(),
            "driver": nvmlSystemGetDriverVersion(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


def markdown(result: dict[str, Any]) -> str:
    """The table for people, with what contention changed."""
    rows = {(row["op"], row["mode"], row["contention"]): row for row in result["rows"]}
    environment, names = result["environment"], list(dict.fromkeys(row["op"] for row in result["rows"]))
    versions = ", ".join(
        f"{key} {environment[key]}" for key in ("driver", "torch", "cuda", "cudnn", "python") if key in environment
    )
    lines = [
        "# Which stock torch ops give the same bits twice",
        "",
        f"{environment['device']}, {versions}; {result['date']}; {result['seconds']} s; `{result['command']}`.",
        f"Cells: runs that differed in any bit from the first, of {environment['replays']}. Contention: two side streams of",
        "matrix products and one of copies during every run after the first. Each mode ran in a fresh process, the",
        "deterministic one with `use_deterministic_algorithms(True)`, never `warn_only`. *refused*: torch raised instead of",
        "computing; *failed*: anything else went wrong.",
        "",
        "| op | shape | default | default, contention | deterministic | deterministic, contention |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        cells = [_cell(rows[name, mode, contended]) for mode in MODES for contended in (False, True)]
        lines.append(f"| {name} | {rows[name, 'default', False]['shape']} | {' | '.join(cells)} |")
    lines += ["", "## What contention changed", "", _contention_told(rows, names), "", "## First differences, and refusals", ""]
    told: dict[str, str] = {}
    for row in result["rows"]:
        text = row.get("failed") or row.get("refused") or row.get("first_difference")
        if text:
            told.setdefault(f"{row['op']}, {row['mode']}", text)
    lines += [f"- {subject}: {text}" for subject, text in told.items()]
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any]) -> str:
    if "compared" not in row:
        return "refused" if "refused" in row else "failed"
    alone = row["contention"] and row["notes"]
    return f"{row['differing']}/{row['compared']}" + (" (no contention)" if alone else "")


def _contention_told(rows: dict[tuple[str, str, bool], dict[str, Any]], names: list[str]) -> str:
    notes = sorted({note for row in rows.values() for note in row.get("notes", ())})
    if notes:
        return "Nothing, because there was none: " + "; ".join(notes) + "."
    pairs = [(name, rows[name, "default", False], rows[name, "default", True]) for name in names]
    measured = [
        (name, plain["differing"], busy["differing"]) for name, plain, busy in pairs if "differing" in {*plain} & {*busy}
    ]
    woken = [f"{name}: 0 plain, {busy} under contention" for name, plain, busy in measured if plain == 0 < busy]
    raised = [f"{name}: {plain} plain, {busy} under contention" for name, plain, busy in measured if 0 < plain < busy]
    first = "; ".join(woken) or "No op was found that differs under contention and not without"
    return f"{first}." + (f" Raised as well: {'; '.join(raised)}." if raised else "")


if __name__ == "__main__":
    sys.exit(main())
