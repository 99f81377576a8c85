"""The columnar form that every trace reader produces, and its check.

All times are int64 nanoseconds on the trace's own clock. Column names and dtypes stand here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfgate.traces.table import Framed, Table, Texts, Values

if TYPE_CHECKING:
    import pandas as pd

# One row per GPU operation: kernel, memcpy, memset, or one launch of a CUDA graph traced as a whole.
OPS: dict[str, str] = {
    "kind": "str",  # KERNEL | MEMCPY | MEMSET | GRAPH
    "name": "str",  # demangled kernel name; "[memcpy HtoD]", "[memset]", "[graph 3]" for the others
    "device": "int64",
    "context": "int64",
    "stream": "int64",
    "process": "int64",  # nsys globalPid (globalTid with the low 24 bits cleared); the plain pid elsewhere
    "correlation": "int64",
    "start": "int64",
    "end": "int64",
    "grid": "str",  # "132x1x1", "" where it does not apply
    "block": "str",
    "registers": "int64",  # per thread; -1 unknown
    "shared_memory": "int64",  # bytes per block, static + dynamic; -1 unknown
    "graph_node": "int64",  # -1 where the kernel was not launched by a graph in node mode
}

# One row per API call that may launch GPU work (runtime and driver calls; never filtered by name).
LAUNCHES: dict[str, str] = {
    "name": "str",
    "process": "int64",
    "thread": "int64",  # nsys globalTid
    "correlation": "int64",
    "start": "int64",
    "end": "int64",
}

# One row per NVTX range (or record_function range).
RANGES: dict[str, str] = {
    "domain": "str",  # "" is the default domain
    "name": "str",
    "kind": "str",  # PushPop | StartEnd
    "process": "int64",
    "thread": "int64",
    "end_thread": "int64",  # differs from thread only for a StartEnd range ended elsewhere
    "start": "int64",
    "end": "int64",  # equal to start where closed is False
    "closed": "bool",  # False: no end in the file, or its end is only the end of the capture
}


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class Trace:
    """What one capture holds, whatever format it came from.

    ``ops``, ``launches`` and ``ranges`` have the columns of :data:`OPS`, :data:`LAUNCHES`, :data:`RANGES`; row order means
    nothing, and text columns may be categorical. They are given as tables or DataFrames and read as DataFrames;
    :func:`~perfgate.traces.table.table_in` gives the tables. ``has_gpu`` is False where the capture holds no GPU activity
    table at all (then busy is unknown, never 0).
    ``diagnostics`` are the profiler's own messages, without anything of the environment.
    """

    source: str
    format: str  # nsys-sqlite | nsys-csv | kineto
    tool_version: str  # "2025.3.1", "" unknown
    schema_version: str
    ops: Framed = Framed()  # noqa: RUF009  (a descriptor, as are the next two)
    launches: Framed = Framed()  # noqa: RUF009
    ranges: Framed = Framed()  # noqa: RUF009
    has_gpu: bool = False
    graph_mode: str = ""  # "graph" | "node" | "" unknown or no graphs
    diagnostics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what the reader had to leave out or guess, in words


def blank(columns: Mapping[str, str]) -> Table:
    """A table with the given columns and no rows."""
    return Table(
        {name: Texts(np.empty(0, np.int8), ()) if kind == "str" else np.empty(0, kind) for name, kind in columns.items()}
    )


def checked(columns: Mapping[str, Values], wanted: Mapping[str, str]) -> Table:
    """The columns ``wanted``, in their order. Raises ``KeyError`` for one that lacks: a reader's bug, never a user's error."""
    return Table({name: columns[name] for name in wanted})


def empty(columns: dict[str, str]) -> pd.DataFrame:
    """A frame with the given columns and no rows."""
    import pandas as pd

    return pd.DataFrame({name: pd.Series([], dtype=_dtype(kind)) for name, kind in columns.items()})


def check(frame: pd.DataFrame, columns: dict[str, str], what: str) -> pd.DataFrame:
    """``frame`` with exactly ``columns``, in order, cast to their dtypes; a text column may be categorical, and stays so.

    Raises ``ValueError`` naming the missing columns: a reader's bug, never a user's error.
    """
    kinds = dict(zip(frame.columns, frame.dtypes, strict=True))
    missing = [name for name in columns if name not in kinds]
    if missing:
        raise ValueError(f"{what}: missing columns {', '.join(missing)}")
    if list(kinds) != list(columns):
        frame = frame[list(columns)]
    other = {name: _dtype(kind) for name, kind in columns.items() if not _held(kinds[name], _dtype(kind))}
    return frame.astype(other) if other else frame


def _held(dtype: object, wanted: str) -> bool:
    import pandas as pd

    return dtype == wanted or (wanted == "object" and isinstance(dtype, pd.CategoricalDtype))


def _dtype(kind: str) -> str:
    return "object" if kind == "str" else kind


# measure.py: one row per usable instance (occurrence) of a range.
INSTANCES: dict[str, str] = {
    "instance": "int64",  # number unique in this measurement, joins ATTRIBUTED
    "domain": "str",
    "name": "str",
    "process": "int64",
    "thread": "int64",
    "start": "int64",
    "host_ns": "int64",  # the range's own wall time
    "busy_ns": "int64",  # union of its GPU intervals per device, the largest device; -1 where the trace has no GPU data
    "span_ns": "int64",  # first GPU start to last GPU end; -1 likewise
    "sum_ns": "int64",
    "idle_ns": "int64",  # span - busy
    "ops": "int64",
    "rule": "str",  # same-thread | process | cross-thread: how GPU work was attributed to it
}

# measure.py, on request: one row per (instance, GPU operation), in launch order within an instance.
ATTRIBUTED: dict[str, str] = {
    **OPS,
    "instance": "int64",
    "exclusive_ns": "int64",  # the part of its interval no earlier-started op covered; sums to busy_ns on one device
}
