"""The names that services share: topics, record keys, record headers.

Services know each other by Kafka topics alone. What a topic is called, how a record's key is spelled and what
its headers mean is said here, once, and nowhere else. Only the standard library is used, so that Spark
executors can import it.

Topics of the source ``shop``: ``shop.raw``, ``shop.events``, ``shop.transactions``, ``shop.catalog``,
``shop.ddl``, ``shop.schemas``, ``shop.deadletter``, ``shop.snapshot``, ``shop.signals``, ``shop.avro``,
``shop.state``, and ``shop.{db}.{table}`` per table. Decoder and row mapper of another source, ``shop_v2``,
may read what reader and snapshot of ``shop`` write, and write topics of their own beside it.

Keys are ASCII; in a log file's name, blanks, percent signs and what is not ASCII become ``%HH``. A raw
record's key is ``{server_id}:{epoch}:{log_file}:{position}``, an event's the same and ``:{sub_index}``.
(epoch, log_file, position, sub_index, chunk) is unique within a source forever.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self
from urllib.parse import quote, unquote

HEADER_CHUNK: Final = "chunk"
"""``i/n``, i from 0: the record is one of n pieces of an event; all have the same key and lie in order."""

HEADER_ARTIFICIAL: Final = "artificial"
"""``1``: the event is in no log file, such as a format description that the server altered for a dump."""

HEADER_CHECKSUM: Final = "checksum"
"""``bad``: the event's CRC32 did not match, twice."""

HEADER_EXCLUDED: Final = "excluded"
"""``1``: zeros stand in place of the event's rows or statement, by MILLRACE_TOPICS_RAW_EXCLUDE."""

HEADER_MARKER: Final = "marker"
"""The record is no event but a note of the reader's: SOURCE_CHANGED, GAP or ABANDONED.

Its key is a raw key; a SOURCE_CHANGED or GAP record has position 0, where no event starts, an ABANDONED
record the position at which the cut transaction would have continued. The value says why, as UTF-8 text. The
decoder passes it on to ``{source}.events`` with the same header and value, and sub_index 0 in the key. Where
raw records were deleted before it has read them, it writes a GAP record of its own, with a position between
two events.
"""

HEADER_TABLE: Final = "table"
"""On dead letters of a quarantined table: its name, as database.table."""

HEADER_REDRIVEN: Final = "redriven"
"""On rows that waited in the dead letter topic, and on the BEGIN and END around them: they come late."""

SOURCE_CHANGED: Final = b"source_changed"
"""Marker: the log that follows is another one, in a new epoch."""

GAP: Final = b"gap"
"""Marker: changes are missing here, which nobody can read any more.

At position 0 it begins a new epoch, at whose head the reader has begun to look for alterations of tables.
"""

ABANDONED: Final = b"abandoned"
"""Marker: the transaction before it was cut and follows again, whole, in a new epoch."""

TOPIC_NAME_LIMIT: Final = 249
_SOURCE_LIMIT: Final = 200
_FILE_NUMBER: Final = re.compile(r"[0-9]+$")
_SOURCE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_HASH_DIGITS: Final = 16
_VERSION: Final = re.compile(r"-v([2-9]|[1-9][0-9]{1,8})$")

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TO_ESCAPE: Final = re.compile(r"^[0-9]|_(?=x[0-9A-F]{4}_)|[^A-Za-z0-9_]")
_ESCAPED: Final = re.compile(r"(?:_x[0-9A-F]{4}_)+")


def escape_name(name: str) -> str:
    """Spell a database, table or column name so that Kafka and Avro both take it; see :func:`unescape_name`.

    ASCII letters, digits and underscores stay. Every other character, and a digit at the front, becomes
    ``_xHHHH_`` per UTF-16 code unit; an underscore that would read as the start of such an escape is escaped.
    """
    if "_x" not in name and _PLAIN_NAME.fullmatch(name):
        return name
    return _TO_ESCAPE.sub(_escape_match, name)


def _escape_match(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"_x{units[i]:02X}{units[i + 1]:02X}_" for i in range(0, len(units), 2))


def unescape_name(escaped: str) -> str:
    """Return back the name that :func:`escape_name` was given."""
    return _ESCAPED.sub(_unescape_match, escaped)


def _unescape_match(match: re.Match[str]) -> str:
    units = bytes.fromhex("".join(match.group().replace("_x", "").split("_")))
    return units.decode("utf-16-be", "surrogatepass")


def source_problem(source: str) -> str | None:
    """Say what is wrong with a source's name, or nothing."""
    if not _SOURCE.fullmatch(source):
        return "a letter, then letters, digits, '_' or '-'"
    if len(source) > _SOURCE_LIMIT:
        return f"at most {_SOURCE_LIMIT} characters"
    return None


OF_ALL_SOURCES: Final[Mapping[str, str]] = {kind: f"millrace.{kind}" for kind in ("alerts", "analytics")}
"""Names of the topics that all sources share, by kind."""

SERVICES: Final = ("reader", "decoder", "rowmapper")
"""Those that have a state, in the order in which a change goes through them."""

RUN: Final = "run"
"""What carries a source in place of all of them, in one process."""


PAUSE: Final = "pause"
"""Under which name ``{source}.state`` says that a source is paused."""


def transactional_id(service: str, source: str) -> str:
    """Name the Kafka producer of a service for a source: there is only ever one with that name."""
    return f"millrace-{service}-{source}"


@dataclass(frozen=True, slots=True)
class ServiceTopics:
    """The topics that a service reads or writes, but those of the state and of tables.

    ``own`` is the one that it alone writes, ``input`` the one that it reads, if any; ``kinds`` gives the kind
    of each by its name. In ``others`` no record of its own may be there twice, either. Those that are
    ``captured`` come from the reader of another source.
    """

    own: str
    input: str | None
    kinds: Mapping[str, str]
    captured: frozenset[str] = frozenset()

    @property
    def others(self) -> list[str]:
        """Those that it writes beside its own, but the catalogue, which may be written again."""
        return [name for name, kind in self.kinds.items() if kind in ("ddl", "schemas", "deadletter")]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one source.

    With an ``input_source`` what reader and snapshot write is that source's, all else its own.
    """

    source: str
    input_source: str | None = None

    @property
    def origin(self) -> str:
        """The source whose reader and snapshot write what decoder and row mapper read."""
        return self.input_source or self.source

    @property
    def reads_another(self) -> bool:
        """Whether that is another one."""
        return self.origin != self.source

    @property
    def raw(self) -> str:
        """Exact event bytes."""
        return f"{self.origin}.raw"

    @property
    def events(self) -> str:
        """One Avro record per event."""
        return f"{self.source}.events"

    @property
    def transactions(self) -> str:
        """BEGIN and END of each transaction."""
        return f"{self.source}.transactions"

    @property
    def catalog(self) -> str:
        """Table definitions as read from the server."""
        return f"{self.origin}.catalog"

    @property
    def ddl(self) -> str:
        """Each DDL statement."""
        return f"{self.source}.ddl"

    @property
    def schemas(self) -> str:
        """The definition that each DDL statement leads to."""
        return f"{self.source}.schemas"

    @property
    def deadletter(self) -> str:
        """What could not be decoded or mapped, with its bytes."""
        return f"{self.source}.deadletter"

    @property
    def snapshot(self) -> str:
        """Rows as SELECT gave them, to be merged into the row topics."""
        return f"{self.origin}.snapshot"

    @property
    def avro(self) -> str:
        """Avro schemas, where there is no schema registry."""
        return f"{self.source}.avro"

    @property
    def signals(self) -> str:
        """What a snapshot that stays is asked for."""
        return f"{self.source}.signals"

    @property
    def state(self) -> str:
        """Where each service stands."""
        return f"{self.source}.state"

    def of_service(self, service: str) -> ServiceTopics:
        """Return the topics of the reader, the decoder or the row mapper."""
        own, read, *others = _OF_SERVICES[service]
        kinds = {self._of_kind(kind): kind for kind in (own, read, *others) if kind is not None}
        captured = frozenset(name for name in kinds if not name.startswith(f"{self.source}."))
        return ServiceTopics(
            self._of_kind(own), None if read is None else self._of_kind(read), kinds, captured
        )

    def _of_kind(self, kind: str) -> str:
        return f"{self.origin if kind in _CAPTURED else self.source}.{kind}"

    def table(self, database: str, table: str) -> str:
        """Name the topic of a table's rows.

        A name beyond Kafka's 249 characters is cut and ends with ``-`` and a hash of the whole; an escaped
        name has no ``-``, so that no other table's topic can be called the same.
        """
        name = f"{self.source}.{escape_name(database)}.{escape_name(table)}"
        if len(name) <= TOPIC_NAME_LIMIT:
            return name
        digest = hashlib.sha256(name.encode("ascii")).hexdigest()[:_HASH_DIGITS]
        return f"{name[: TOPIC_NAME_LIMIT - _HASH_DIGITS - 1]}-{digest}"

    def version(self, topic: str, number: int) -> str:
        """Name the topic in which the rows of a table continue where its schema does not fit the one before.

        An escaped name has no ``-``, so that no other table's topic can be called the same.
        """
        return topic if number == 1 else f"{topic}-v{number}"


def is_of_rows(topic: str) -> bool:
    """Return whether a topic of a source has the rows of a table: ``{source}.{database}.{table}``."""
    return topic.count(".") == 2


def first_version(topic: str) -> str:
    """Return the name of a topic without its version: the table's first topic."""
    return _VERSION.sub("", topic)


def version_number(topic: str) -> int:
    """Return the number of a topic among the versions of a table's topic."""
    found = _VERSION.search(topic)
    return 1 if found is None else int(found[1])


def versions_among(names: Iterable[str], topic: str) -> list[str]:
    """Return those names, in their order, that are versions of a table's topic; the topic is the first."""
    return sorted((name for name in names if first_version(name) == topic), key=version_number)


def metric_name(topic: str) -> str:
    """Return what Kafka makes of a topic's name in its metrics; no two topics may have the same."""
    return topic.replace(".", "_")


_CAPTURED: Final = frozenset({"raw", "catalog", "snapshot"})
"""Kinds of topics that come from the server, by reader and snapshot."""

_OF_SERVICES: Final[dict[str, tuple[str, str | None, *tuple[str, ...]]]] = {
    "reader": ("raw", None, "catalog"),
    "decoder": ("events", "raw", "deadletter"),
    "rowmapper": ("transactions", "events", "catalog", "ddl", "schemas", "deadletter"),
}
"""Kinds of topics: the service's own, the one that it reads, others."""

_NOT_IN_KEYS: Final = re.compile(r"[^\x21-\x24\x26-\x7e]")


def _quote(log_file: str) -> str:
    return _NOT_IN_KEYS.sub(lambda match: quote(match.group(), safe=""), log_file)


def _unquote(log_file: bytes) -> str:
    return unquote(log_file.decode("ascii"), errors="strict")


def key_number(text: bytes) -> int:
    """Read a number of a key; raise ValueError where it is none, or no number that a long of Avro holds."""
    number = int(text)
    if number >> 63:
        raise ValueError(f"{text!r} is negative or has more than 63 bits")
    return number


def log_number(log_file: str) -> tuple[str, int]:
    """Cut the number off a log file's name; 0 where it has none."""
    number = _FILE_NUMBER.search(log_file)
    return (log_file, 0) if number is None else (log_file[: number.start()], int(number.group()))


class SourcePosition(NamedTuple):
    """A position in the logs of a source: the epoch, the log file and the offset in it."""

    epoch: int
    log_file: str
    position: int

    def order(self) -> tuple[int, int, int]:
        """Return what rises along the stream: epoch, number of the log file, position."""
        return self.epoch, log_number(self.log_file)[1], self.position

    def with_epoch(self) -> str:
        """Write it for messages that may be about several epochs."""
        return f"{self} of epoch {self.epoch}"

    def __str__(self) -> str:
        return f"{self.log_file}:{self.position}"


@dataclass(frozen=True, slots=True)
class RawKey:
    """Where an event starts: the originating server, the epoch, the log file and the offset in it."""

    server_id: int
    epoch: int
    log_file: str
    position: int

    @property
    def place(self) -> SourcePosition:
        """The place without the server."""
        return SourcePosition(self.epoch, self.log_file, self.position)

    @property
    def order(self) -> tuple[int, int, int]:
        """What rises from record to record: see :meth:`SourcePosition.order`."""
        return self.place.order()

    def encode(self) -> bytes:
        """Spell the key of a record in ``{source}.raw``."""
        return f"{self.server_id}:{self.epoch}:{_quote(self.log_file)}:{self.position}".encode("ascii")

    @classmethod
    def parse(cls, key: bytes) -> Self:
        """Read a key; raise ValueError if it is none. The log file's name may hold colons."""
        try:
            server_id, epoch, rest = key.split(b":", 2)
            log_file, position = rest.rsplit(b":", 1)
            return cls(key_number(server_id), key_number(epoch), _unquote(log_file), key_number(position))
        except ValueError:
            raise ValueError(
                f"{key!r} is not a raw key: server_id:epoch:log_file:position is expected"
            ) from None


@dataclass(frozen=True, slots=True)
class EventKey:
    """A raw key, and which of the events inside it: 0 for itself, 1, 2, … for those it holds."""

    server_id: int
    epoch: int
    log_file: str
    position: int
    sub_index: int

    @property
    def raw(self) -> RawKey:
        """The key of the raw record that the event came from."""
        return RawKey(self.server_id, self.epoch, self.log_file, self.position)

    def encode(self) -> bytes:
        """Spell the key of a record in ``{source}.events``."""
        return self.raw.encode() + b":%d" % self.sub_index

    @classmethod
    def parse(cls, key: bytes) -> Self:
        """Read a key; raise ValueError if it is none. The log file's name may hold colons."""
        try:
            server_id, epoch, rest = key.split(b":", 2)
            log_file, position, sub_index = rest.rsplit(b":", 2)
            return cls(int(server_id), int(epoch), _unquote(log_file), int(position), int(sub_index))
        except ValueError:
            raise ValueError(
                f"{key!r} is not an event key: server_id:epoch:log_file:position:sub_index is expected"
            ) from None
