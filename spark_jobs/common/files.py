"""Parquet files that executors write, a folder per table, without passing rows through the JVM.

An executor writes under names that no other attempt uses and reports what it wrote. Files that are not
reported to the driver, such as those of a lost attempt, belong to no result. Files are written where
:mod:`pyarrow.fs` can write: on a disk that all executors share, or in an object store.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from millrace.spark.archive import file_system

_MOST_OPEN: Final = 64
"""Files that are open at the same time: each has buffers of its own."""

_PAGE_ROWS: Final = 1 << 20
"""Rows of a page, which ends at 1 MiB: each has a compression of its own."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file: its table, where it lies in the folder of the results, what it holds."""

    table: str
    path: str
    rows: int
    bytes: int


def remove_others(folder: str, files: Iterable[WrittenFile]) -> None:
    """Remove the other files of Parquet in a folder: attempts that were lost have left them."""
    system, place = file_system(folder)
    named = {f"{place}/{file.path}" for file in files}
    for found in system.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True)):
        if found.path.endswith(".parquet") and found.path not in named:
            system.delete_file(found.path)


def _leaves(fields: Iterable[pa.Field], place: str = "") -> Iterator[tuple[str, bool]]:
    """Name the columns of Parquet, and say which have a dictionary."""
    for field in fields:
        path = place + field.name
        if pa.types.is_struct(field.type):
            yield from _leaves(field.type, f"{path}.")
        elif pa.types.is_list(field.type):
            yield from _leaves([field.type.value_field.with_name("element")], f"{path}.list.")
        else:
            yield path, pa.types.is_dictionary(field.type)


class ParquetFiles:
    """Writes tables into a folder, each as a file per day; ``prefix`` begins the files' names.

    Columns that have a dictionary in Arrow get one, and so do those named in ``repeating``, numbers that
    mostly are as in the row before: in small ones zstd finds the zeros, and not the whole.
    """

    def __init__(self, folder: str, prefix: str, repeating: Collection[str] = ()) -> None:
        self._system, self._folder = file_system(folder)
        self._name = f"{prefix}-{uuid.uuid4().hex}"
        self._repeating = repeating
        self._open: dict[str, tuple[str, pq.ParquetWriter, pa.Schema]] = {}
        self._rows: dict[str, int] = {}
        self._written: list[WrittenFile] = []

    def write(self, table: str, batch: pa.RecordBatch, days: pa.Array | None = None) -> None:
        """Append rows to a table; with their ``days``, each into a folder of its own."""
        if not batch.num_rows:
            return
        if days is None:
            self._append(table, table, batch)
            return
        first, last = pc.min_max(days).values()
        if first == last:
            self._append(table, f"{table}/day={first}", batch)
            return
        for day in sorted(pc.unique(days), key=str):
            self._append(table, f"{table}/day={day}", batch.filter(pc.equal(days, day)))

    def _append(self, table: str, folder: str, batch: pa.RecordBatch) -> None:
        found = self._open.pop(folder, None)
        if found is None or found[2] != batch.schema:
            if found is not None:
                self._close(folder, found)
            if len(self._open) >= _MOST_OPEN:
                oldest = next(iter(self._open))
                self._close(oldest, self._open.pop(oldest))
            found = self._begin(table, folder, batch.schema)
        found[1].write_batch(batch)
        self._open[folder] = found
        self._rows[folder] = self._rows.get(folder, 0) + batch.num_rows

    def _begin(self, table: str, folder: str, schema: pa.Schema) -> tuple[str, pq.ParquetWriter, pa.Schema]:
        path = f"{self._folder}/{folder}"
        self._system.create_dir(path, recursive=True)
        name = f"{folder}/{self._name}-{len(self._written) + len(self._open)}.parquet"
        leaves = list(_leaves(schema))
        writer = pq.ParquetWriter(
            f"{self._folder}/{name}",
            schema,
            filesystem=self._system,
            compression="zstd",
            # Of others most values do not repeat, and zstd finds those that do.
            use_dictionary=[path for path, has in leaves if has or path in self._repeating],
            # A dictionary says more than the least and greatest value, which cost as much as writing it.
            write_statistics=[path for path, has in leaves if not has],
            max_rows_per_page=_PAGE_ROWS,
            store_schema=False,  # whether a column has a dictionary does not concern its reader
        )
        return f"{table}\0{name}", writer, schema

    def _close(self, folder: str, found: tuple[str, pq.ParquetWriter, pa.Schema]) -> None:
        table, _, path = found[0].partition("\0")
        found[1].close()
        size = self._system.get_file_info(f"{self._folder}/{path}").size
        self._written.append(WrittenFile(table, path, self._rows.pop(folder), size))

    def close(self) -> Sequence[WrittenFile]:
        """Finish all files; give what was written."""
        while self._open:
            self._close(*self._open.popitem())
        return self._written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for found in self._open.values():
            found[1].close()
