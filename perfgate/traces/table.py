"""Columns without pandas, whose import alone takes longer than reading a hundred thousand kernels.

A :class:`Table` is what readers fill and :mod:`perfgate.measure` computes on; whoever wants a DataFrame asks for its ``frame``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Values = Any  # Ints, Mask or Texts


class Texts:
    """A column of text: a code per row into the distinct ``names``; millions of rows share a handful of names."""

    __slots__ = ("codes", "names")

    def __init__(self, codes: NDArray[np.integer[Any]], names: Sequence[str]) -> None:
        self.codes = codes
        self.names = names

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, places: Ints | Mask | slice) -> Texts:
        """The rows at ``places``."""
        return Texts(taken(self.codes, places), self.names)

    def at(self, places: Ints) -> list[str]:
        """The texts of some rows."""
        return [self.names[code] for code in self.codes[places].tolist()]

    def is_one_of(self, names: Iterable[str]) -> Mask:
        """Whether each row holds one of ``names``, looked up once per distinct name."""
        wanted = set(names)
        hits = np.array([name in wanted for name in self.names], dtype=bool)
        return hits[self.codes] if hits.any() else np.zeros(len(self.codes), dtype=bool)


class Table:
    """Columns of equal length by name: arrays of whole numbers or booleans, and :class:`Texts`."""

    def __init__(self, columns: Mapping[str, Values]) -> None:
        self.columns = dict(columns)

    @classmethod
    def of(cls, held: Table | pd.DataFrame) -> Table:
        """``held`` as a table; numbers keep the memory they are in."""
        if isinstance(held, Table):
            return held
        return cls({str(name): as_values(held[name]) for name in held.columns})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def names(self) -> list[str]:
        """The columns' names in their order."""
        return list(self.columns)

    def ints(self, name: str) -> Ints:
        """A column of numbers."""
        values: Ints = self.columns[name]
        return values

    def mask(self, name: str) -> Mask:
        """A column of booleans."""
        values: Mask = self.columns[name]
        return values

    def texts(self, name: str) -> Texts:
        """A column of text."""
        values: Texts = self.columns[name]
        return values

    def take(self, places: Ints | Mask | slice) -> Table:
        """The rows at ``places``, in that order."""
        return Table(
            {
                name: values.take(places) if isinstance(values, Texts) else taken(values, places)
                for name, values in self.columns.items()
            }
        )

    def with_columns(self, **columns: Values) -> Table:
        """The same with some columns added or replaced."""
        return Table({**self.columns, **columns})

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame, text columns categorical; made once."""
        import pandas as pd

        def column(values: Values) -> Any:
            if isinstance(values, Texts):
                return pd.Categorical.from_codes(values.codes, categories=pd.Index(list(values.names), dtype=object))
            return values

        return pd.DataFrame({name: column(values) for name, values in self.columns.items()}, copy=False)


def taken(values: NDArray[Any], places: Ints | Mask | slice) -> NDArray[Any]:
    """``values[places]``; where all lie in the memory of one (see :func:`steady`), so does the result."""
    if isinstance(places, slice):
        return values[places]
    if len(values) and values.strides == (0,):
        count = int(np.count_nonzero(places)) if places.dtype == bool else len(places)
        return np.broadcast_to(values[0], count)
    return values[places]


def steady(values: Ints) -> Ints:
    """``values``, in the memory of one of them where all are equal; such an array can only be read."""
    if len(values) and values[0] == values[-1] and (values.strides == (0,) or bool((values == values[0]).all())):
        return np.broadcast_to(values[0], len(values))
    return values


def is_steady(values: NDArray[Any]) -> bool:
    """Whether all values are one, told without looking at them: see :func:`steady`."""
    return values.strides == (0,)


def distinct(values: Ints) -> list[int]:
    """Every value once, smallest first."""
    if len(values) and is_steady(values):
        return [int(values[0])]
    found: list[int] = np.unique(values, return_index=True)[0].tolist()  # without the index numpy imports its masked arrays
    return found


def as_values(column: Values | pd.Series[Any]) -> Values:
    """A column of a DataFrame as this module holds it; what it holds already stays."""
    if isinstance(column, np.ndarray | Texts):
        return column
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return Texts(column.cat.codes.to_numpy(), [str(name) for name in column.cat.categories])
    if column.dtype == bool or pd.api.types.is_integer_dtype(column.dtype):
        return column.to_numpy()
    codes, names = pd.factorize(column, sort=True)
    return Texts(codes, [str(name) for name in names])


class Framed:
    """A dataclass field that takes a :class:`Table` or a DataFrame and reads as a DataFrame, made when first asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> pd.DataFrame:
        if instance is None:
            raise AttributeError(self._name)  # so that a dataclass sees no default
        held = vars(instance)[self._name]
        return held.frame if isinstance(held, Table) else held

    def __set__(self, instance: object, value: Table | pd.DataFrame) -> None:
        vars(instance)[self._name] = value


class FramedOrNone(Framed):
    """A :class:`Framed` field that may be ``None``."""

    def __get__(self, instance: object, owner: type | None = None) -> pd.DataFrame | None:  # type: ignore[override]
        return super().__get__(instance, owner)

    def __set__(self, instance: object, value: Table | pd.DataFrame | None) -> None:
        vars(instance)[self._name] = value


def table_in(holder: object, field: str) -> Table:
    """What a :class:`Framed` field of ``holder`` holds, as a table."""
    return Table.of(vars(holder)[field])
