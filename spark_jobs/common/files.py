"""Parquet files that executors write, a folder per table, without passing rows through the JVM.

An executor writes under names that no other attempt uses and reports what it wrote. Files that are not
reported to the driver, such as those of a lost attempt, belong to no result. Files are written where
:mod:`pyarrow.fs` can write: on a disk that all executors share, or in an object store.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

_MOST_OPEN: Final = 64
"""Files that are open at the same time: each has buffers of its own."""

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file: its table, where it lies in the folder of the results, what it holds."""

    table: str
    path: str
    rows: int
    bytes: int


def file_system(place: str) -> tuple[fs.FileSystem, str]:
    """Give the file system of a folder and the folder's path in it; ``s3a`` is what Spark calls ``s3``."""
    scheme, _, rest = place.partition("://")
    if not rest:
        return fs.LocalFileSystem(), place.removeprefix("file:")
    found, path = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{rest}")
    return found, path


def remove_others(folder: str, files: Iterable[WrittenFile]) -> None:
    """Remove the other files of Parquet in a folder: attempts that were lost have left them."""
    system, place = file_system(folder)
    named = {f"{place}/{file.path}" for file in files}
    for found in system.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True)):
        if found.path.endswith(".parquet") and found.path not in named:
            system.delete_file(found.path)


class ParquetFiles:
    """Writes tables into a folder, each as a file per day; ``prefix`` begins the files' names."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._system, self._folder = file_system(folder)
        self._name = f"{prefix}-{uuid.uuid4().hex}"
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
        found = sorted(pc.unique(days), key=str)
        for day in found:
            part = batch if len(found) == 1 else batch.filter(pc.equal(days, day))
            self._append(table, f"{table}/day={day}", part)

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
        # Most values of small transactions do not repeat, and zstd finds what does.
        writer = pq.ParquetWriter(
            f"{self._folder}/{name}",
            schema,
            filesystem=self._system,
            compression="zstd",
            use_dictionary=False,
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
