"""What Kafka and the server tell of a source: states, positions, lags, what is quarantined."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from pydantic import Field

from millrace.avro.events import EventDeserializer
from millrace.avro.registry import RegistryError, SchemaStore
from millrace.avro.service_state import DecoderState, QuarantinedTable, ReaderState, RowMapperState
from millrace.avro.single_object import SingleObjectError
from millrace.binlog.errors import BinlogError
from millrace.contract import PAUSE, EventKey, RawKey, SourcePosition, Topics
from millrace.dead_letters import Outline, WaitingDeadLetters, read_outlines
from millrace.kafka.client import Message, connect
from millrace.kafka.read import read_topic, topic_names
from millrace.kafka.state import StoredState, read_state
from millrace.kafka.topics import topic_ids
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.errors import SourceError
from millrace.mysql.settings import MysqlSettings
from millrace.mysql.status import LogFile, binary_logs, log_status
from millrace.runtime.settings import EnvironmentSettings, KafkaSettings, RegistrySettings
from millrace.status.lag import Lag, count, event_step, gtids_between, raw_step
from millrace.status.missing import Shortfall, shortfalls

_DEAD_LETTERS_LIMIT: Final = 100_000
_OWN_LINES: Final = {"quarantine", "pause", "pending_xa", "not_run"}


class StatusSettings(EnvironmentSettings):
    """The settings of the services; only Kafka's are needed."""

    source: str | None = Field(default=None, description="name of the replication stream")
    kafka: KafkaSettings
    registry: RegistrySettings = Field(default_factory=lambda: RegistrySettings.model_validate({}))
    mysql: MysqlSettings = Field(default_factory=lambda: MysqlSettings.model_validate({}))


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The end of a server's log, or why it cannot be told."""

    address: str
    log_file: str = ""
    position: int = 0
    gtid_set: str = ""
    error: str = ""
    logs: tuple[LogFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Service:
    """Where a service stands: everything before ``place`` is done, as far as its state tells.

    ``input_offset`` is that in its input topic, ``owner`` the process that wrote the state last. ``work`` is
    "running", "not running", "paused", or the name of a command that is at work in its place.
    """

    name: str
    owner: str
    written_ms: int
    place: SourcePosition | None
    input_offset: int | None = None
    gtid_set: str | None = None
    error: str = ""
    work: str = "running"


@dataclass(frozen=True, slots=True)
class Hop:
    """What is on its way from one side to the other."""

    start: str
    end: str
    lag: Lag


@dataclass(slots=True)
class SourceStatus:
    """All that is known of a source.

    ``origin`` is the source whose raw topic its decoder reads: itself, or another one.
    """

    source: str
    origin: str
    server: ServerStatus | None = None
    services: list[Service] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    quarantined: tuple[QuarantinedTable, ...] = ()
    pending_xa: int = 0
    non_row_changes: Mapping[str, int] = field(default_factory=dict)
    """Statements that changed rows and were logged as text, by table."""
    dead_letters: int = 0
    dead_letters_exact: bool = True
    dead_letters_waiting: int = 0
    dead_letters_redriven: int = 0
    dead_letters_discarded: int = 0
    missing: list[Shortfall] = field(default_factory=list)
    """What else is missing in the row topics, or waits."""
    problems: list[str] = field(default_factory=list)
    pause: StoredState | None = None
    """The record of its pause, with time and author."""


def sources(settings: StatusSettings) -> list[str]:
    """Return the source of the settings if there is one, else all that have a state in Kafka."""
    if settings.source is not None:
        return [settings.source]
    states = (name for name in topic_names(connect(settings.kafka)) if name.endswith(".state"))
    return [name.removesuffix(".state") for name in states if name.count(".") == 1]


def collect(settings: StatusSettings, source: str, registry: SchemaStore) -> SourceStatus:
    """Look at a source once. Raises BrokerError where Kafka does not answer; all else becomes part of it."""
    admin = connect(settings.kafka)
    stored: dict[str, StoredState] = {}
    problems = []
    pause: StoredState | None = None
    state = Topics(source).state
    if state in topic_ids(admin, [state]):
        for name in ("reader", "decoder", "rowmapper"):
            found = read_state(settings.kafka, source, name)
            if found is not None and found.value is not None:
                stored[name] = found
        found = read_state(settings.kafka, source, PAUSE)
        pause = found if found is not None and found.value is not None else None
    else:
        problems.append(f"no service of {source} has run: there is no topic {state}")
    topics = Topics(source, _origin(stored))
    status = SourceStatus(source, topics.origin, problems=problems, pause=pause)
    # After the states: what these tell of is there by now.
    known = topic_ids(admin, [topics.raw, topics.events, topics.deadletter])
    if topics.reads_another:
        its_reader = read_state(settings.kafka, topics.origin, "reader")
        reader = _reader(SourceStatus(topics.origin, topics.origin), its_reader)  # told of with its source
    else:
        reader = _reader(status, stored.get("reader"))
        if settings.mysql.host is not None and settings.source == source:
            status.server = _server(settings.mysql.addresses(), reader)
        if reader is not None:
            status.hops.append(Hop("server", "raw", _lag_of_reader(reader, status.server)))
    if topics.raw in known:
        _decoder(status, settings, topics.raw, stored.get("decoder"), reader)
    if topics.events in known:
        _rowmapper(status, settings, stored.get("rowmapper"), registry)
    if stored:
        with suppress(SingleObjectError):  # which is said of the service
            found_missing = shortfalls(settings.kafka, topics)
            status.missing += [one for one in found_missing if one.kind not in _OWN_LINES]
    if topics.deadletter in known:
        _dead_letters(status, read_outlines(settings.kafka, topics.deadletter, undecided=False))
    return status


def _service(
    status: SourceStatus, name: str, stored: StoredState, place: SourcePosition | None, **found: Any
) -> Service:
    """Say where a service stands, and who is at work."""
    if stored.by.is_command and not stored.by.ended and not stored.is_silent:
        work = stored.by.role
    elif status.pause is not None:
        work = "paused"
    else:
        work = "not running" if stored.by.ended or stored.is_silent else "running"
    return Service(name, stored.owner, stored.written_ms, place, work=work, **found)


def _origin(stored: Mapping[str, StoredState]) -> str | None:
    """Say whose raw topic the decoder has read, by its state; None where that does not tell."""
    value = stored["decoder"].value if "decoder" in stored else None
    with suppress(SingleObjectError):
        known = () if value is None else DecoderState.from_bytes(value).continuity.topics
        return next((name.removesuffix(".raw") for name in known if name.endswith(".raw")), None)
    return None


def _reader(status: SourceStatus, stored: StoredState | None) -> ReaderState | None:
    if stored is None or stored.value is None:
        return None
    try:
        state = ReaderState.from_bytes(stored.value)
    except SingleObjectError as error:
        status.services.append(_service(status, "reader", stored, None, error=str(error)))
        return None
    if state.reset is not None:
        status.problems.append(
            f"the source was moved: the reader starts at {state.reset} the next time, in a new epoch"
        )
    status.services.append(_service(status, "reader", stored, state.place, gtid_set=state.gtid_set))
    return state


def _server(addresses: Iterable[MysqlAddress], reader: ReaderState | None) -> ServerStatus | None:
    """Ask the server that is read: of several the one with the uuid that the reader saw, else the first."""
    found: ServerStatus | None = None
    wanted = None if reader is None or reader.identity is None else reader.identity.server_uuid
    for address in addresses:
        try:
            with MysqlConnection(address) as connection:
                end = log_status(connection)
                status = ServerStatus(
                    str(address),
                    end.log_file,
                    end.position,
                    end.gtid_set,
                    logs=tuple(binary_logs(connection)),
                )
                if wanted is None or connection.variable("server_uuid") == wanted:
                    return status
        except SourceError as error:
            status = ServerStatus(str(address), error=str(error))
        if found is None or found.error:
            found = status
    return found


def _lag_of_reader(reader: ReaderState, server: ServerStatus | None) -> Lag:
    """Compare the reader's place with the end of the server's log.

    When the oldest event that was not read happened, nobody can ask; it is not older than the last that was.
    """
    if server is None or server.error:
        return Lag(None, None, None)
    names = [log.name for log in server.logs]
    if reader.log_file not in names or server.log_file not in names:
        return Lag(None, None, gtids_between(reader.gtid_set, server.gtid_set))
    between = server.logs[names.index(reader.log_file) : names.index(server.log_file)]
    behind = sum(log.size for log in between) + server.position - reader.position
    if behind <= 0:
        return Lag(0, 0.0, 0)
    age_s = max(0.0, time.time() - reader.last_timestamp / 1000)
    return Lag(behind, age_s, gtids_between(reader.gtid_set, server.gtid_set))


def _decoder(
    status: SourceStatus,
    settings: StatusSettings,
    raw: str,
    stored: StoredState | None,
    reader: ReaderState | None,
) -> None:
    offset = 0
    error = ""
    if stored is not None and stored.value is not None:
        try:
            offset = DecoderState.from_bytes(stored.value).place_to_read
        except SingleObjectError as failure:
            error = str(failure)
    first, messages = _pending(settings.kafka, raw, offset)
    place = None
    if first is not None:
        place = _place(RawKey, first)
    elif reader is not None:
        place = reader.place
    if stored is not None:
        status.services.append(_service(status, "decoder", stored, place, input_offset=offset, error=error))
    if not error:
        status.hops.append(Hop("raw", "events", count(messages, raw_step)))


def _rowmapper(
    status: SourceStatus,
    settings: StatusSettings,
    stored: StoredState | None,
    registry: SchemaStore,
) -> None:
    offset = 0
    error = ""
    if stored is not None and stored.value is not None:
        try:
            state = RowMapperState.from_bytes(stored.value)
            offset = state.input_offset
            status.quarantined, status.pending_xa = state.quarantined, len(state.pending_xa)
            status.non_row_changes = state.non_row_changes
            status.dead_letters_redriven = state.counters.get("dead_letters_redriven", 0)
            status.dead_letters_discarded = state.counters.get("dead_letters_discarded", 0)
        except SingleObjectError as failure:
            error = str(failure)
    first, messages = _pending(settings.kafka, Topics(status.source).events, offset)
    place = None
    if first is not None:
        place = _place(EventKey, first)
    else:
        # All events are rows by now: it stands where the decoder does.
        place = next((service.place for service in status.services if service.name == "decoder"), None)
    if stored is not None:
        status.services.append(_service(status, "rowmapper", stored, place, input_offset=offset, error=error))
    if error:
        return
    lag = None
    try:
        lag = count(messages, event_step(EventDeserializer(registry)))
    except (RegistryError, BinlogError, ValueError) as failure:
        status.problems.append(f"events cannot be counted by transactions and bytes: {failure}")
        _, messages = _pending(settings.kafka, Topics(status.source).events, offset)
    status.hops.append(Hop("events", "rows", lag or count(messages, None)))


def _dead_letters(status: SourceStatus, outlines: Iterable[Outline]) -> None:
    """Count the dead letters, and those that wait."""
    waiting = WaitingDeadLetters(status.quarantined)
    for outline in outlines:
        status.dead_letters += 1
        status.dead_letters_waiting += waiting.take(outline)
        if status.dead_letters >= _DEAD_LETTERS_LIMIT:
            status.dead_letters_exact = False
            return


def _pending(kafka: KafkaSettings, topic: str, offset: int) -> tuple[Message | None, Iterator[Message]]:
    """Return the first record of a topic that a service at ``offset`` can read by now, and all of them."""
    messages = read_topic(kafka, topic, start=offset, undecided=False)
    first = next(messages, None)
    return first, messages if first is None else chain([first], messages)


def _place(kind: type[RawKey] | type[EventKey], message: Message) -> SourcePosition | None:
    key = message.key()
    try:
        found = kind.parse(key if isinstance(key, bytes) else b"")
    except ValueError:
        return None
    return SourcePosition(found.epoch, found.log_file, found.position)
