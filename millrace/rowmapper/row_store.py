"""The store of known rows: a file of SQLite, with the row mapper's state up to which it holds them.

It is written after each commit to Kafka, rows and state in one SQLite transaction. If the process ends
between the two, or another one has run since, the store lags behind the state in Kafka: then
:func:`catch_up` reads the rows from the events in between, without publishing anything. A store of other
topics, or of a later state, is emptied, and filled from the oldest event that still exists.

The file may be lost, or deleted while the row mapper is stopped, at any time. SQLite is needed only with a
store.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from millrace.avro.service_state import RowMapperState
from millrace.avro.single_object import SingleObjectError
from millrace.kafka.errors import InputLostError
from millrace.rowmapper.known_rows import KnownRows, Name
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.stage import RowMapperStage
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.stage import Record

_LOG = get_logger(__name__)
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS tables (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    database BLOB NOT NULL, name BLOB NOT NULL, forgotten INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS rows (
    table_id INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (table_id, key)
) WITHOUT ROWID;
"""
_CACHE_KIB: Final = 32 * 1024
_PURGED: Final = 2000
"""Rows of forgotten tables that are deleted with each commit."""
_WAIT_S: Final = 10.0
_BATCH: Final = 500
_ALL: Final = 1 << 62


class SqliteRowStore:
    """Rows in one file, by the table's number and their key."""

    def __init__(self, path: Path) -> None:
        try:
            import sqlite3  # noqa: PLC0415 - some builds of Python lack it, and few need it
        except ImportError as error:
            raise UserError(
                "MILLRACE_ROWS_COMPLETE needs SQLite, which this Python was built without",
                ExitCode.SETTINGS,
            ) from error
        self._path = path
        self._error = sqlite3.Error
        with self._said():
            self._db = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._db.executescript(_SCHEMA)
            self._ids = {
                (_text(database), _text(name)): number
                for number, database, name in self._db.execute(
                    "SELECT id, database, name FROM tables WHERE NOT forgotten"
                )
            }
            found = self._db.execute("SELECT value FROM state").fetchone()
            self._purging = self._db.execute("SELECT 1 FROM tables WHERE forgotten").fetchone() is not None
        self.state: bytes | None = None if found is None else found[0]
        """The row mapper's state up to which there are rows."""

    def names(self) -> Collection[Name]:
        """Return the tables of which there are rows."""
        return self._ids.keys()

    def get(self, name: Name, key: bytes) -> bytes | None:
        """Return a row; None where none is known."""
        number = self._ids.get(name)
        if number is None:
            return None
        with self._said():
            found = self._db.execute(
                "SELECT value FROM rows WHERE table_id = ? AND key = ?", (number, key)
            ).fetchone()
        return None if found is None else found[0]

    def apply(
        self, forgotten: Iterable[Name], rows: Mapping[Name, Mapping[bytes, bytes | None]], state: bytes
    ) -> None:
        """Forget tables, then put rows, or drop them (None), and note the state; all of it or nothing."""
        with self._said():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._check_alone()
                self._forget(forgotten)
                for name, changed in rows.items():
                    self._put(self._number(name), changed)
                self._purge()
                self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (state,))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        self.state = state

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _check_alone(self) -> None:
        found = self._db.execute("SELECT value FROM state").fetchone()
        if (None if found is None else found[0]) != self.state:
            raise UserError(
                f"another process writes to {self._path}: only one row mapper at a time can use it",
                ExitCode.SETTINGS,
            )

    def _forget(self, names: Iterable[Name]) -> None:
        """Let go of tables; their rows are deleted little by little."""
        for name in names:
            number = self._ids.pop(name, None)
            if number is not None:
                self._db.execute("UPDATE tables SET forgotten = 1 WHERE id = ?", (number,))
                self._purging = True

    def _number(self, name: Name) -> int:
        number = self._ids.get(name)
        if number is None:
            made = self._db.execute(
                "INSERT INTO tables (database, name, forgotten) VALUES (?, ?, 0)", tuple(map(_bytes, name))
            )
            number = self._ids[name] = int(made.lastrowid or 0)
        return number

    def _put(self, number: int, changed: Mapping[bytes, bytes | None]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO rows VALUES (?, ?, ?)",
            ((number, key, value) for key, value in changed.items() if value is not None),
        )
        self._db.executemany(
            "DELETE FROM rows WHERE table_id = ? AND key = ?",
            ((number, key) for key, value in changed.items() if value is None),
        )

    def _purge(self) -> None:
        if not self._purging:
            return
        found = self._db.execute("SELECT id FROM tables WHERE forgotten LIMIT 1").fetchone()
        if found is None:
            self._purging = False
            return
        deleted = self._db.execute(
            "DELETE FROM rows WHERE table_id = ?1 AND key IN "
            "(SELECT key FROM rows WHERE table_id = ?1 LIMIT ?2)",
            (found[0], _PURGED),
        )
        if deleted.rowcount < _PURGED:
            self._db.execute("DELETE FROM tables WHERE id = ?", found)

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Say in words what SQLite reports."""
        try:
            yield
        except self._error as error:
            raise UserError(
                f"the store of rows {self._path} cannot be used: {error}. It must be on a local disk "
                "with free space, in a writable folder; delete a damaged one, and it is rebuilt",
                ExitCode.SETTINGS,
            ) from error


def open_row_store(settings: RowMapperSettings) -> SqliteRowStore | None:
    """Open the store of a source; None where no rows are to be completed."""
    folder = settings.rows.store
    if not settings.rows.complete or folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"MILLRACE_ROWS_STORE is wrong: {folder} cannot be made: {error.strerror}", ExitCode.SETTINGS
        ) from error
    return SqliteRowStore(folder / f"{settings.source}.rows")


def catch_up(
    store: SqliteRowStore,
    known: KnownRows,
    stored: bytes | None,
    topic: str,
    *,
    scratch: Callable[[RowMapperState], RowMapperStage],
    oldest: Callable[[], int],
    records: Callable[[int, int], Iterator[Record]],
) -> None:
    """Bring known rows to the state that is ``stored`` in Kafka.

    ``scratch`` makes a stage that learns only, ``oldest`` gives the first offset that the events topic has,
    and ``records`` its records from one offset to before another.
    """
    # Nobody follows tables that are not completed any more, and they may be again.
    for name in list(store.names()):
        if not known.concerns(*name):
            known.forget(*name)
    if stored is None:
        known.forget_all()
        return
    if store.state == stored:
        return
    now = RowMapperState.from_bytes(stored)
    then = _earlier(store.state, now, topic)
    first = oldest()
    if then is None or then.input_offset < first:
        known.forget_all()
        then = RowMapperState(min(first, now.input_offset), continuity=now.continuity)
    _LOG.info(
        "reading rows from events that were published before", start=then.input_offset, stop=now.input_offset
    )
    try:
        _learn(known, scratch(then), then, now, records)
    except InputLostError as error:
        _LOG.warning("all known rows are discarded", reason=error.message)
        known.forget_all()
    for table in (*then.quarantined, *now.quarantined):
        known.forget(table.database, table.table)
    known.settle()
    known.committing(stored)
    known.committed()


def _earlier(stored: bytes | None, now: RowMapperState, topic: str) -> RowMapperState | None:
    """Return the state of a store, where it is one of before ``now``."""
    try:
        then = None if stored is None else RowMapperState.from_bytes(stored)
    except SingleObjectError:
        return None
    if then is None or now.precedes(then):
        return None
    return then if then.continuity.topics.get(topic) == now.continuity.topics.get(topic) else None


def _learn(
    known: KnownRows,
    stage: RowMapperStage,
    then: RowMapperState,
    now: RowMapperState,
    records: Callable[[int, int], Iterator[Record]],
) -> None:
    """Learn what events between two states say, without those of rows that are not published yet."""
    # What waits in the dead letter topic is out of the order of the log.
    for table in then.quarantined:
        known.forget(table.database, table.table)

    def take(batch: list[Record]) -> None:
        for _ in stage.take(batch):
            stage.output.clear()
            known.settle()
            state = stage.state()
            if known.due and state.place <= now.place:
                known.committing(replace(state, continuity=now.continuity).to_bytes())
                known.committed()

    if then.input_offset < now.input_offset:
        batch: list[Record] = []
        for record in records(then.input_offset, now.input_offset):
            if record.offset >= now.input_offset:
                break
            batch.append(record)
            if len(batch) == _BATCH:
                take(batch)
                batch = []
        if batch:
            take(batch)
    if now.progress is not None:
        known.stop = now.input_offset, now.progress.offset, now.progress.row
        for record in records(now.input_offset, _ALL):
            take([record])
            if stage.state().input_offset > now.input_offset:
                break
        known.stop = None


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")
