"""The snapshot's start, the threads that read, and what writes and commits what they have read.

Tables with a key are read first, in ranges of their keys, several at a time; then those without one, one at a
time. What was written and how far each range has come are committed together, so that a snapshot that was
killed resumes after the last key that is written; a table without a key is read again from its beginning.

A process that stays takes one snapshot after another, as signals ask for them. While it waits it has no
connection to the server and no producer, so that it neither fences nor is fenced. The state names the signal
that is to be read next, so that each is followed once.
"""

import fnmatch
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Final, Self

from millrace.avro.registry import SchemaStore
from millrace.avro.service_state import ReaderState, RowMapperState
from millrace.avro.snapshots import (
    MERGED_KEY,
    SNAPSHOT_LOST,
    SnapshotChunk,
    SnapshotMerged,
    SnapshotRange,
    SnapshotState,
    SnapshotTable,
)
from millrace.binlog.errors import BinlogError
from millrace.contract import RawKey, Topics, versions_among
from millrace.ddl import Server
from millrace.kafka.chunks import split
from millrace.kafka.client import AdminClient, connect
from millrace.kafka.continuity import SettingsGuard, snapshot_loss
from millrace.kafka.input import InputReader
from millrace.kafka.pause import in_its_place
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import read_topic, source_topics
from millrace.kafka.schema_topic import open_schemas
from millrace.kafka.state import decoded_state, newest_offset, read_state
from millrace.kafka.topics import ensure_topics, topic_ids
from millrace.mysql.catalog import read_definition, read_definitions
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.errors import RefusedError, RetriableError
from millrace.runtime.errors import SettingsError, StopRequestedError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.service import Service, run_service
from millrace.runtime.settings import parts_of
from millrace.selection.tables import SYSTEM_DATABASES, is_excluded
from millrace.snapshot.images import SESSION
from millrace.snapshot.tables import (
    Chunk,
    KeyAlteredError,
    TableGoneError,
    TableRows,
    key_columns,
    key_of,
    split_key,
)
from millrace.snapshot.watermarks import LogPosition, Method, Watermarks, Within, choose_method
from millrace.stage import Output
from millrace.status.missing import of_rowmapper
from millrace.verify.history import History
from millrace.verify.snapshot import wait_until_mapped
from millrace.verify.tables import Records
from services.snapshot.metrics import SnapshotMetrics
from services.snapshot.settings import SnapshotRowsSettings, SnapshotSettings
from services.snapshot.signals import signalled_tables

_POLL_S: Final = 0.5
_LOG_EVERY_S: Final = 10.0
_RETRIES: Final = 30
_HEAD_BYTES: Final = 64 * 1024
"""Bytes of a record beside its rows and its table map."""
_KEPT_STATES: Final = 5
_ROWS_LOOKED_AT: Final = 1000
_MAPPED_S: Final = 600.0
_FIRST_ROWS: Final = 1000
"""Rows of a table's first chunk: how large they are shows then."""


def main() -> int:
    """Take a snapshot; return the process's exit code."""
    return run_service("snapshot", SnapshotSettings, run)


class _ReaderStates(threading.Thread):
    """Follows the reader's state in the background: the last few, newest first."""

    def __init__(self, settings: SnapshotSettings) -> None:
        super().__init__(daemon=True, name="reader-state")
        self._settings = settings
        self._left = threading.Event()
        self._states: deque[ReaderState] = deque(maxlen=_KEPT_STATES)
        self._read()
        self.begins = _beginning(settings)

    def get(self) -> list[ReaderState]:
        return list(self._states)

    def run(self) -> None:
        while not self._left.wait(_POLL_S):
            with suppress(UserError):  # Kafka may be away for a while; what is known stays true
                self._read()

    def _read(self) -> None:
        settings = self._settings
        state = decoded_state(settings.kafka, settings.source, "reader", ReaderState, undecided=False)
        if state is None:
            raise UserError(
                f"the reader of {settings.source} has no state: start it first, so that no change is missed "
                "while the snapshot is taken",
                ExitCode.SETTINGS,
            )
        if not self._states or self._states[0].place != state.place:
            self._states.appendleft(state)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        # An answer to an admin client comes on a thread of librdkafka: one that comes while the interpreter
        # ends crashes the process.
        self._left.set()
        self.join()


def _beginning(settings: SnapshotSettings) -> tuple[int, LogPosition] | None:
    """Return epoch and place of the first record of the raw topic."""
    for message in read_topic(settings.kafka, Topics(settings.source).raw):
        key = message.key()
        with suppress(ValueError):
            place = RawKey.parse(key if isinstance(key, bytes) else b"")
            return place.epoch, LogPosition(place.log_file, place.position)
        break
    return None


@dataclass(frozen=True, slots=True)
class _Task:
    """A range of a table, or a table without a key."""

    table: SnapshotTable
    range: SnapshotRange
    keyed: bool


@dataclass(frozen=True, slots=True)
class _Read:
    """What a thread has read of a task; ``note`` says why a table is not read.

    It need not be where the stream ``has_all``. Without any of these, the table's key was altered: it is read
    again, by its new key.
    """

    task: _Task
    chunk: Chunk | None = None
    part: int = 0
    note: str = ""
    has_all: bool = False


class _Pace:
    """Lets so many rows through a second."""

    def __init__(self, rows_per_s: int) -> None:
        self._rate = rows_per_s
        self._lock = threading.Lock()
        self._next = 0.0

    def delay(self, rows: int) -> float:
        """Say how long to wait after rows that were read."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._next = max(self._next, now) + rows / self._rate
            return self._next - now


class _Readers:
    """The threads that read, each with a connection of its own."""

    def __init__(
        self, service: Service[SnapshotSettings], states: _ReaderStates, registry: SchemaStore, limit: int
    ) -> None:
        self.read: queue.Queue[_Read | Exception | None] = queue.Queue(2 * service.settings.snapshot.parallel)
        self._service = service
        self._settings = service.settings
        self._states = states
        self._registry = registry
        self._limit = limit
        self._stop = threading.Event()
        self._pace = _Pace(self._settings.snapshot.rows_per_s)
        self._tasks: deque[_Task] = deque()
        self._lock = threading.Lock()

    def start(self, tasks: list[_Task], count: int) -> Iterator[_Read]:
        """Read tasks by ``count`` threads; give what they have read, and ``_NOTHING`` while they read."""
        self._tasks = deque(tasks)
        threads = [threading.Thread(target=self._run, daemon=True) for _ in range(min(count, len(tasks)))]
        for thread in threads:
            thread.start()
        left = len(threads)
        try:
            while left:
                try:
                    found = self.read.get(timeout=0.05)
                except queue.Empty:
                    found = _Read(_NOTHING)
                if found is None:
                    left -= 1
                elif isinstance(found, Exception):
                    raise found
                else:
                    yield found
        finally:
            self._stop.set()
            with suppress(queue.Empty):
                while True:
                    self.read.get_nowait()

    def _put(self, found: "_Read | Exception | None") -> None:
        while not self._stop.is_set():
            with suppress(queue.Full):
                self.read.put(found, timeout=0.5)
                return
        raise StopRequestedError

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StopRequestedError

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    task = self._tasks.popleft() if self._tasks else None
                if task is None:
                    self._put(None)
                    return
                self._read_task(task)
        except StopRequestedError:
            pass
        except Exception as error:  # noqa: BLE001 - raised where the threads were started
            with suppress(StopRequestedError):
                self._put(error)

    def _read_task(self, task: _Task) -> None:
        """Read a task to its end, over as many connections as that takes."""
        after, failures = tuple(task.range.after), 0
        while True:
            try:
                with connection_of(self._settings, self._states.get()[0]) as connection:
                    watermarks = Watermarks(
                        connection,
                        choose_method(connection, self._states.get()[0]),
                        self._states.get,
                        self._wait,
                        self._states.begins,
                    )
                    for statement in SESSION:
                        connection.query(statement)
                    rows = TableRows(
                        connection,
                        watermarks,
                        task.table.database,
                        task.table.table,
                        key=task.table.key,
                        where=task.table.where,
                        piece_bytes=self._limit,
                    )
                    if not task.keyed:
                        server = Server.parse(connection.version)
                        for part, chunk in enumerate(rows.whole(self._check_of(task, server))):
                            self._put(_Read(task, chunk, part))
                            self._wait(self._pace.delay(chunk.rows))
                        return
                    wanted = self._settings.snapshot
                    size = min(_FIRST_ROWS, wanted.chunk_rows)
                    while True:
                        chunk = rows.chunk(after, task.range.until, size)
                        self._check_epoch(chunk)
                        self._put(_Read(task, chunk))
                        if chunk.at_end:
                            return
                        after, failures = tuple(chunk.last_key), 0
                        fits = (wanted.chunk_mib << 20) * chunk.rows // max(chunk.size, 1)
                        size = max(1, min(wanted.chunk_rows, fits))
                        self._wait(self._pace.delay(chunk.rows))
            except _StreamHasAllError:
                self._put(_Read(task, has_all=True))
                return
            except (TableGoneError, BinlogError) as error:
                self._put(_Read(task, note=str(error)))
                return
            except KeyAlteredError:
                self._put(_Read(task))
                return
            except RetriableError as error:
                failures += 1
                if failures > _RETRIES:
                    raise
                self._service.log.warning("reading again", table=task.table.table, reason=str(error))
                self._wait(min(0.1 * 2**failures, 10.0))

    def _check_epoch(self, chunk: Chunk) -> None:
        if self._states.get()[0].epoch != chunk.epoch:
            raise RetriableError("the reader reads another log from here on")

    def _check_of(self, task: _Task, server: Server) -> Callable[[Within, LogPosition], None]:
        """Return what raises TableGoneError where a row topic has rows that the snapshot has too."""
        settings, topics = self._settings, Topics(self._settings.source)
        database, table = task.table.database, task.table.table
        name = f"{database}.{table}"

        def check(within: Within, place: LogPosition) -> None:
            wait_until_mapped(
                settings.kafka,
                topics,
                place.log_file,
                place.position,
                timeout_s=_MAPPED_S,
                say=lambda text: self._service.log.info("waiting", reason=text),
            )
            renamed = settings.replicate.tables.database(database), table
            first = topics.table(*(settings.topics.named(name) or renamed))
            there = source_topics(connect(settings.kafka), settings.source)
            records = Records(self._registry)
            messages = chain.from_iterable(
                islice(read_topic(settings.kafka, each), _ROWS_LOOKED_AT)
                for each in versions_among(there, first)
            )
            for message in messages:
                topic = message.topic()
                record = records.envelope_of(message)
                source = None if record is None else record["source"]
                if record is None or source is None:
                    continue
                if record["op"] == "r" or within(source["gtid"], LogPosition(source["file"], source["pos"])):
                    asked = name in parts_of(settings.snapshot.tables)
                    if not asked and _has_all(settings, self._registry, server, task.table):
                        raise _StreamHasAllError
                    raise TableGoneError(
                        f"{name} has no key, and {topic} has rows of it that the snapshot has too: they "
                        "would count twice; delete that topic first"
                    )

        return check


class _StreamHasAllError(Exception):
    """The stream has all rows of a table: it was created, or emptied, while the reader read."""


def _has_all(settings: SnapshotSettings, registry: SchemaStore, server: Server, table: SnapshotTable) -> bool:
    """Whether the log has created or emptied a table, and nothing tells that changes are missing since."""
    topics = Topics(settings.source)
    state = decoded_state(settings.kafka, settings.source, "rowmapper", RowMapperState)
    if state is None or any(of_rowmapper(state)):
        return False
    history = History.read(settings.kafka, topics, Records(registry).value_of, server)
    eras = history.of_table(table.database, table.table, ())
    return not eras.from_the_beginning and eras.moved is None


_NOTHING: Final = _Task(SnapshotTable("", ""), SnapshotRange(), keyed=False)


def connection_of(settings: SnapshotSettings, reader: ReaderState) -> MysqlConnection:
    """Connect to the server that the reader reads; raises RefusedError where none of those named is it."""
    identity = reader.identity
    seen = []
    for address in settings.mysql.addresses():
        connection = MysqlConnection(address)
        try:
            found = connection.variable("server_uuid")
        except BaseException:
            connection.close()
            raise
        if identity is None or identity.server_uuid is None or found in (None, identity.server_uuid):
            return connection
        connection.close()
        seen.append(f"{address} is {found}")
    raise RefusedError(
        f"the reader of {settings.source} reads the server {identity.server_uuid if identity else ''}, but "
        f"{', '.join(seen)}: a snapshot must be taken from the same server"
    )


def run(service: Service[SnapshotSettings]) -> None:
    """Take a snapshot, or resume the one that was begun; or those that signals ask for.

    One that is told to stop before its end has an exit code of its own, lest a supervisor take it for done.
    """
    metrics = SnapshotMetrics(service.metrics)
    try:
        if service.settings.snapshot.mode == "signals":
            _follow_signals(service, metrics)
        else:
            _run(service, metrics)
    except StopRequestedError:
        raise UserError(
            "stopped before the end of the snapshot: start it again to resume", ExitCode.INTERRUPTED
        ) from None


@dataclass(frozen=True, slots=True)
class _Signal:
    """A signal: where the one after it stands, and what it asks for; without tables, to resume."""

    topic_id: str
    next_offset: int
    tables: Sequence[str] = ()


def _follow_signals(service: Service[SnapshotSettings], metrics: SnapshotMetrics) -> None:
    """Resume a snapshot that was begun, then take those that signals ask for, until told to stop."""
    settings, topics = service.settings, Topics(service.settings.source)
    admin = connect(settings.kafka, service.stop)
    ensure_topics(admin, settings.topics, {topics.state: "state", topics.signals: "signals"})
    topic_id = topic_ids(admin, [topics.signals])[topics.signals]
    stored = read_state(settings.kafka, settings.source, "snapshot")
    state = None if stored is None else _decoded(stored.value)
    metrics.state = state or metrics.state
    with InputReader(settings.kafka, topics.signals, f"millrace-snapshot-{settings.source}") as reader:
        offset = state.signals_offset if state is not None and state.signals_topic == topic_id else 0
        if state is not None and not state.finished:
            _run(service, metrics, _Signal(topic_id, offset))
        reader.seek(max(offset, reader.first_offset()))
        service.log.info("waiting for signals", topic=topics.signals)
        watched = {topics.signals: "signals", topics.snapshot: "snapshot", topics.state: "state"}
        guard = SettingsGuard(admin, watched)
        while not service.stop.is_set():
            service.health.beat()
            service.health.set_ready()
            guard.look()
            for record in reader.read(1, 1.0):
                try:
                    tables = signalled_tables(record.value)
                except ValueError as error:
                    service.log.warning("a signal is left out", offset=record.offset, reason=str(error))
                    continue
                service.log.info("a signal asks for a snapshot", offset=record.offset, tables=tables)
                _run(service, metrics, _Signal(topic_id, record.offset + 1, tables))


def _run(service: Service[SnapshotSettings], metrics: SnapshotMetrics, signal: _Signal | None = None) -> None:
    if signal is not None:
        wanted = service.settings.snapshot.model_copy(update={"tables": ",".join(signal.tables)})
        settings = service.settings.model_copy(update={"snapshot": wanted, "restart": False})
        service = replace(service, settings=settings)
    admin = connect(service.settings.kafka, service.stop)
    in_its_place(service, admin, partial(_take, service, metrics, admin, signal))


def _take(
    service: Service[SnapshotSettings], metrics: SnapshotMetrics, admin: AdminClient, signal: _Signal | None
) -> None:
    settings, topics = service.settings, Topics(service.settings.source)
    ensure_topics(admin, settings.topics, {topics.state: "state"})
    try:
        with (
            open_schemas(
                settings.kafka, settings.registry, settings.source, topics=settings.topics, stop=service.stop
            ) as registry,
            _ReaderStates(settings) as states,
            TransactionalProducer(settings.kafka, settings.source, "snapshot", stop=service.stop) as producer,
        ):
            (stored,) = producer.open()
            lost = snapshot_loss(settings.kafka, admin, topics)
            info = ensure_topics(admin, settings.topics, {topics.snapshot: "snapshot"})[topics.snapshot]
            before = None if stored is None else _decoded(stored.value)
            with connection_of(settings, states.get()[0]) as connection:
                method = choose_method(connection, states.get()[0])
                try:
                    state = _state(service, connection, before, signal)
                except _NoTableError as error:
                    if signal is None:
                        raise
                    service.log.warning("a signal is left out", tables=signal.tables, reason=error.message)
                    state = before or SnapshotState(0, [], finished=True)
                if signal is not None:
                    state.signals_topic, state.signals_offset = signal.topic_id, signal.next_offset
                unread = [table for table in state.tables if not table.done]
                notes = {} if lost is None else _taken_again(service, lost, state, before, signal)
                tasks = _tasks(service, connection, state)
            if signal is not None and not unread:
                state.finished = True
                producer.commit(state.to_bytes())
                return
            if not unread and before is not None and before.finished:
                taken = "a snapshot has been taken" if _is_taken(settings.snapshot, before) else "all is read"
                service.log.info(f"{taken}: nothing to do", tables=len(state.tables))
                return
            if method is Method.SHARED_LOCK:
                service.log.warning(
                    "rows are read LOCK IN SHARE MODE: writers of a chunk's rows wait until it is read",
                    reason="this server has neither GTIDs nor performance_schema.log_status",
                )
            service.log.info(
                "resuming a snapshot" if state.rows else "taking a snapshot",
                tables=len(state.tables),
                rows_before=state.rows,
                low_watermark=method.value,
            )
            metrics.state = state
            snapshot = _Snapshot(service, producer, state, info.record_limit, notes)
            readers = partial(_Readers, service, states, registry)
            snapshot.take(tasks, readers)
            while not all(table.done for table in state.tables):  # those whose key was altered
                with connection_of(settings, states.get()[0]) as connection:
                    tasks = _tasks(service, connection, state)
                snapshot.take(tasks, readers)
            snapshot.finish(unread)
    except (RefusedError, RetriableError) as error:
        raise UserError(str(error), ExitCode.SOURCE) from error


def _decoded(value: bytes | None) -> SnapshotState | None:
    return None if value is None else SnapshotState.from_bytes(value)


def _taken_again(
    service: Service[SnapshotSettings],
    lost: str,
    state: SnapshotState,
    before: SnapshotState | None,
    signal: _Signal | None,
) -> dict[bytes, bytes | None]:
    """Return what is noted where all tables of a snapshot whose rows are lost are read again.

    Raises UserError where none of them was asked for by name, or the snapshot is to be resumed.
    """
    settings = service.settings
    if any(table.rows for table in state.tables):  # read before
        going_on = before is None or not before.finished
        is_named = settings.snapshot.tables and not all(table.done for table in state.tables) and not going_on
        if is_named or (signal is not None and signal.tables):
            return {}
        raise UserError(f"{lost}. --restart takes the snapshot from the beginning", ExitCode.DATA)
    topic = Topics(settings.source).snapshot
    (topic_id,) = topic_ids(connect(settings.kafka), [topic]).values()
    merged = SnapshotMerged(topic_id, newest_offset(settings.kafka, topic))
    return {SNAPSHOT_LOST: None, MERGED_KEY: merged.to_bytes()}


class _NoTableError(UserError):
    """None of the tables that were asked for is there."""


def _state(
    service: Service[SnapshotSettings],
    connection: MysqlConnection,
    before: SnapshotState | None,
    signal: "_Signal | None",
) -> SnapshotState:
    """Return the state to continue from: that of before, with the tables that are to be read now.

    Those that are named are read, again if need be; without a name all that were not read, with the condition
    that is asked for. A signal without tables resumes and no more.
    """
    settings = service.settings
    wanted = settings.snapshot
    going_on = before is not None and not before.finished and not settings.restart
    kept = {
        (table.database, table.table): table
        for table in (() if before is None else before.tables)
        if (going_on or table.done) and not is_excluded(settings.topics.excluded, table.database, table.table)
    }
    state = SnapshotState(int(time.time() * 1000), [])
    if before is not None:
        state.snapshot = before.snapshot if going_on else state.snapshot
        state.signals_topic, state.signals_offset = before.signals_topic, before.signals_offset
    if signal is None or signal.tables:
        there = [
            (definition.database, definition.table)
            for definition in read_definitions(connection)
            if definition.table
        ]
        problems = list(_names_without_tables(service, connection, there))
        chosen = [name for name in there if _is_wanted(settings, *name)]
        if problems and signal is None:
            raise SettingsError(problems)
        for problem in problems:
            service.log.warning("a name stands for no table", reason=problem)
        if not chosen:
            raise _NoTableError(
                "there is no table to take a snapshot of: look at MILLRACE_SNAPSHOT_TABLES, "
                "MILLRACE_REPLICATE_… and MILLRACE_TOPICS_RAW_EXCLUDE, and whether "
                f"{connection.address.user!r} may SELECT",
                ExitCode.SETTINGS,
            )
        if _is_taken(wanted, before):
            unread = [".".join(name) for name in chosen if name not in kept]
            if unread:
                service.log.warning("tables are not in the snapshot that has been taken", tables=unread)
            chosen = [name for name in chosen if name in kept and kept[name].note]
        for name in chosen:
            where = wanted.conditions.get(".".join(name), "")
            is_again = settings.restart or (bool(wanted.tables) and not going_on)
            if is_again or name not in kept or kept[name].note or kept[name].where not in ("", where):
                kept[name] = SnapshotTable(*name, where)
        gone = {name for name, table in kept.items() if table.note} - set(there)
        kept = {name: table for name, table in kept.items() if name not in gone}
    state.tables = [kept[name] for name in sorted(kept)]
    return state


def _is_taken(wanted: SnapshotRowsSettings, before: SnapshotState | None) -> bool:
    """Whether no table is to be read but those that the snapshot of before has left out."""
    return wanted.mode == "once" and before is not None and before.finished and bool(before.tables)


def _names_without_tables(
    service: Service[SnapshotSettings], connection: MysqlConnection, there: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Say of each name and pattern that stands for no table what is wrong with it."""
    settings = service.settings
    wanted = settings.snapshot
    full = [".".join(name) for name in there]
    for pattern in parts_of(wanted.tables):
        found = [name for name in there if fnmatch.fnmatchcase(".".join(name), pattern)]
        if not found:
            yield f"{pattern}: there is no such table, or {connection.address.user!r} may not SELECT from it"
        elif not any(_is_wanted(settings, *name) for name in found):
            yield (
                f"{pattern}: MILLRACE_REPLICATE_…, MILLRACE_TOPICS_RAW_EXCLUDE or MILLRACE_SNAPSHOT_EXCLUDE "
                "leave it out, or it is the server's own"
            )
    for name in wanted.conditions:
        if name not in full:
            yield f"MILLRACE_SNAPSHOT_WHERE: {name}: there is no such table"
    for pattern in parts_of(wanted.exclude):
        if not fnmatch.filter(full, pattern):
            service.log.warning("a pattern of MILLRACE_SNAPSHOT_EXCLUDE leaves no table out", pattern=pattern)


def _is_wanted(settings: SnapshotSettings, database: str, table: str) -> bool:
    def named(patterns: str) -> bool:
        return any(fnmatch.fnmatchcase(f"{database}.{table}", pattern) for pattern in parts_of(patterns))

    wanted = settings.snapshot
    return (
        database not in SYSTEM_DATABASES
        and settings.replicate.tables.selects(database, table)
        and not is_excluded(settings.topics.excluded, database, table)
        and (not wanted.tables or named(wanted.tables))
        and not named(wanted.exclude)
    )


def _tasks(
    service: Service[SnapshotSettings], connection: MysqlConnection, state: SnapshotState
) -> list[_Task]:
    """Cut the tables that are left into ranges; tables without a key come last."""
    settings = service.settings.snapshot
    keyed: list[_Task] = []
    whole: list[_Task] = []
    for table in state.tables:
        service.health.beat()
        if table.done:
            continue
        definition = read_definition(connection, table.database, table.table)
        if definition is None:
            table.note = "it is no longer there"
        elif not definition.columns:
            table.note = "its definition is too large"
        if definition is None or table.note:
            _log_left_out(service, table)
            continue
        has_key, key = bool(key_columns(definition)), key_of(definition)
        if table.key not in ("", key):
            service.log.warning(
                "a table is read again from its beginning: its key was altered",
                table=f"{table.database}.{table.table}",
                key=key,
            )
            table.ranges, table.rows = [], 0
        table.key = key
        if not table.ranges:
            least = 2 * settings.parallel * settings.chunk_rows
            cuts = split_key(connection, definition, settings.parallel, least) if has_key else [((), "")]
            table.ranges = [SnapshotRange(after, until) for after, until in cuts]
            row = connection.row(
                "SELECT TABLE_ROWS AS estimate FROM information_schema.TABLES "
                "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                [table.database, table.table],
            )
            table.estimate = row.number("estimate")
        tasks = [_Task(table, each, keyed=has_key) for each in table.ranges if not each.done]
        (keyed if has_key else whole).extend(tasks)
    return keyed + whole


def _log_left_out(service: Service[SnapshotSettings], table: SnapshotTable) -> None:
    service.log.error("a table is left out", table=f"{table.database}.{table.table}", reason=table.note)


class _Snapshot:
    """Writes what the threads have read, and commits it with how far they have come."""

    def __init__(
        self,
        service: Service[SnapshotSettings],
        producer: TransactionalProducer,
        state: SnapshotState,
        record_limit: int,
        notes: Mapping[bytes, bytes | None],
    ) -> None:
        self._notes = notes
        self._service = service
        self._producer = producer
        self.state = state
        self._limit = record_limit
        topics = Topics(service.settings.source)
        self._topic = topics.snapshot
        watched = {topics.snapshot: "snapshot", topics.state: "state"}
        self._settings_guard = SettingsGuard(connect(service.settings.kafka), watched)
        self._output = Output()
        self._said = time.monotonic()
        self._began = time.monotonic()
        self._rows = 0

    def take(self, tasks: list[_Task], make: Callable[[int], _Readers]) -> None:
        """Read tasks to their end, or until the process is told to stop."""
        self._commit()
        self._service.health.set_ready()
        limit = max(self._limit - _HEAD_BYTES, self._limit // 2)
        parallel = self._service.settings.snapshot.parallel
        for keyed, count in ((True, parallel), (False, 1)):
            chosen = [task for task in tasks if task.keyed is keyed]
            for read in make(limit).start(chosen, count) if chosen else ():
                self._service.health.beat()
                if read.task is not _NOTHING:
                    self._write(read)
                if self._producer.due or (read.task is _NOTHING and self._producer.pending):
                    self._commit()
                if self._service.stop.is_set():
                    self._commit()
                    raise StopRequestedError
                self._producer.sign()

    def finish(self, tables: Sequence[SnapshotTable]) -> None:
        """Note that all is read; raises UserError where some of ``tables`` were left out."""
        self.state.finished = True
        self._commit()
        seconds = time.monotonic() - self._began
        left_out = {f"{each.database}.{each.table}": each.note for each in tables if each.note}
        self._service.log.info(
            f"the snapshot is taken{', except of tables that are left out' if left_out else ''}",
            rows=self._rows,
            seconds=round(seconds, 1),
            rows_per_s=round(self._rows / max(seconds, 1e-3)),
            left_out=left_out,
        )
        if left_out and self._service.settings.snapshot.mode != "signals":
            reasons = "; ".join(
                note if name in note else f"{name}: {note}" for name, note in left_out.items()
            )
            raise UserError(
                f"of {len(tables)} tables {len(left_out)} were left out of the snapshot: {reasons}",
                ExitCode.DATA,
            )

    def _write(self, read: _Read) -> None:
        """Write what was read of a task, and note how far it has come."""
        task, chunk = read.task, read.chunk
        table = task.table
        if read.has_all:
            task.range.done = True
            self._service.log.info(
                "a table without a key is not read: the stream has all of its rows",
                table=f"{table.database}.{table.table}",
            )
            return
        if chunk is None and not read.note:
            table.ranges = []
            return
        if chunk is None:
            table.note = read.note
            _log_left_out(self._service, table)
            return
        if not task.keyed and read.part == 0:
            table.rows = 0
        selected = chunk.table
        for count, rows in chunk.pieces:
            record = SnapshotChunk(
                self.state.snapshot,
                table.database,
                table.table,
                task.keyed,
                read.part,
                chunk.at_end and not task.keyed,
                chunk.epoch,
                chunk.low.log_file,
                chunk.low.position,
                chunk.high.log_file,
                chunk.high.position,
                chunk.read_ms,
                selected.server_version,
                selected.table_map.encode_fields(8),
                count,
                rows,
            )
            for header, piece in split(record.to_bytes(), self._limit):
                headers = None if header is None else [header]
                self._output.add(self._topic, record.key, piece, chunk.read_ms, headers)
        table.rows += chunk.rows
        self._rows += chunk.rows
        if chunk.last_key:
            task.range.after = list(chunk.last_key)
        task.range.done = chunk.at_end
        self._producer.send(self._output)
        self._output.clear()

    def _commit(self) -> None:
        self._producer.commit(self.state.to_bytes(), others=list(self._notes.items()))
        self._notes = {}
        self._settings_guard.look()
        now = time.monotonic()
        if now - self._said >= _LOG_EVERY_S:
            self._said = now
            self._service.log.info(
                "reading",
                rows=self._rows,
                rows_per_s=round(self._rows / (now - self._began)),
                tables_left=sum(not each.done for each in self.state.tables),
                estimate=sum(each.estimate for each in self.state.tables),
            )
