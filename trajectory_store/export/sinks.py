"""Where rows go: JSON lines, or Parquet in row groups of a bounded number of tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

import orjson

from .errors import MissingExtra
from .file import WholeFile

Row = dict[str, Any]
"""Column → value; token columns are arrays."""

GROUP_VALUES = 1 << 20
"""Array elements after which a Parquet row group is written: what is held in memory."""


class Sink(Protocol):
    """Takes rows in order; `close` writes what is still held."""

    def write(self, row: Row) -> None:
        """Take one row."""
        ...

    def close(self) -> None:
        """Write the rest; the file itself stays open."""
        ...


class JsonLines:
    """One JSON object a line. Floats are written so that they read back to the same value."""

    def __init__(self, file: WholeFile) -> None:
        """Write to an open file."""
        self._file = file

    def write(self, row: Row) -> None:
        """Write one line."""
        self._file.write(orjson.dumps(row, default=_plain, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Do nothing: lines are written as they come."""


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in a row")


class Parquet:
    """Parquet with zstd; arrays are handed over without a Python object a token."""

    def __init__(self, file: WholeFile, columns: Mapping[str, str]) -> None:
        """Write these columns; raises `MissingExtra` where pyarrow is not installed."""
        self._arrow = load_pyarrow()
        import pyarrow.parquet as parquet

        fields = [(name, self._type(kind)) for name, kind in columns.items()]
        self._schema = self._arrow.schema(fields)
        texts = [name for name, kind in columns.items() if kind == "string"]
        # Ids and logprobs hardly repeat within a page: a dictionary of them costs five times the
        # time of plain values and makes the file larger.
        self._writer = parquet.ParquetWriter(
            self._arrow.PythonFile(_Handle(file), mode="w"),
            self._schema,
            compression="zstd",
            use_dictionary=texts,  # pyright: ignore[reportArgumentType] - a list will do
        )
        self._rows: list[Row] = []
        self._held = 0

    def write(self, row: Row) -> None:
        """Hold the row, and write a row group when enough are held."""
        self._rows.append(row)
        self._held += sum(len(value) for value in row.values() if isinstance(value, array))
        if self._held >= GROUP_VALUES:
            self._flush()

    def close(self) -> None:
        """Write the last row group and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = [self._column(field) for field in self._schema]
        self._writer.write_table(
            self._arrow.Table.from_arrays(columns, schema=self._schema),
            row_group_size=len(self._rows),
        )
        self._rows, self._held = [], 0

    def _type(self, kind: str) -> Any:
        if kind.startswith("list<"):
            return self._arrow.list_(getattr(self._arrow, kind[5:-1])())
        return getattr(self._arrow, kind)()

    def _column(self, field: Any) -> Any:
        arrow, values = self._arrow, [row[field.name] for row in self._rows]
        if not arrow.types.is_list(field.type):
            return arrow.array(values, type=field.type)
        joined, offsets = array(values[0].typecode), array("i", [0])
        for value in values:
            joined.extend(value)
            offsets.append(len(joined))
        item = field.type.value_type
        flat = arrow.Array.from_buffers(item, len(joined), [None, arrow.py_buffer(joined)])
        ends = arrow.Array.from_buffers(
            arrow.int32(), len(offsets), [None, arrow.py_buffer(offsets)]
        )
        return arrow.ListArray.from_arrays(ends, flat, type=field.type)


class _Handle:
    """What pyarrow needs of a file object."""

    closed = False

    def __init__(self, file: WholeFile) -> None:
        self.write: Callable[[bytes], int] = file.write

    def tell(self) -> int:
        raise NotImplementedError

    def flush(self) -> None:
        """Nothing to do: the file is flushed when it is finished."""

    def close(self) -> None:
        """Nothing to do: the file belongs to the export."""


def load_pyarrow() -> ModuleType:
    """Return pyarrow; raises `MissingExtra` naming the extra that brings it."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra(
            "Parquet needs pyarrow: pip install 'budwood[train]' (or pyarrow by itself), "
            "or export --to trl-sft or trl-grpo, which need nothing"
        ) from error
    return pyarrow
