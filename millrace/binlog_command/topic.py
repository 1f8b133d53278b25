"""The raw topic of a source as an input of ``millrace binlog``: ``kafka://host:port/SOURCE``.

Read are the committed records of ``{source}.raw``; TLS and SASL come from the settings ``MILLRACE_KAFKA_…``.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from millrace.binlog.errors import TruncatedError
from millrace.binlog.file import MAX_EVENT_SIZE
from millrace.binlog_command.records import RawEvent, too_large
from millrace.contract import HEADER_CHUNK, HEADER_MARKER, RawKey, Topics, source_problem
from millrace.kafka.chunks import ChunkError, ChunkJoiner
from millrace.kafka.client import Message, connect
from millrace.kafka.read import bytes_of, read_topic, topic_names
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import EnvironmentSettings, KafkaSettings, load_settings


class _Settings(EnvironmentSettings):
    """How Kafka is reached, as the services have it."""

    kafka: KafkaSettings


class TopicInput:
    """Reads the raw events of a source, in the order in which the reader wrote them.

    The logs of one epoch are those of one server; another epoch's of the same name are other logs, which
    :attr:`RawEvent.path` tells apart.
    """

    def __init__(
        self,
        url: str,
        *,
        follow: bool = False,
        note: Callable[[str], None] = lambda _: None,
        max_event_size: int = MAX_EVENT_SIZE,
    ) -> None:
        """Take an address; raises UserError. ``note`` is told of the reader's markers.

        An event larger than ``max_event_size`` is an error.
        """
        parts = urlsplit(url)
        source = parts.path.strip("/")
        problem = source_problem(source) if source else "no source is named"
        problem = problem or _brokers_problem(parts.netloc)
        if problem is not None:
            raise UserError(f"{url} is not kafka://host:port/SOURCE: {problem}", ExitCode.SETTINGS)
        self._settings = load_settings(_Settings, kafka={"bootstrap_servers": parts.netloc}).kafka
        self._topic = Topics(source).raw
        self._follow = follow
        self._note = note
        self._max_event_size = max_event_size
        self.last_path = ""
        self.total_bytes = self.done_bytes = 0

    def logs(self) -> Iterator[Iterator[list[RawEvent]]]:
        """Yield the events of all logs in one run; raises UserError where Kafka does not give them."""
        if self._topic not in topic_names(connect(self._settings)):
            raise UserError(
                f"there is no topic {self._topic} at {self._settings.bootstrap_servers}", ExitCode.KAFKA
            )
        yield self._events()

    def _events(self) -> Iterator[list[RawEvent]]:
        joiner = ChunkJoiner()
        for message in read_topic(self._settings, self._topic, follow=self._follow):
            key, value = bytes_of(message.key()), bytes_of(message.value())
            self.done_bytes += len(value)
            headers: dict[str, Any] = dict(message.headers() or ())
            if HEADER_MARKER in headers:
                self._note(f"{key.decode('ascii', 'replace')}: {value.decode('utf-8', 'replace')}")
                continue
            whole: bytes | None = value
            if HEADER_CHUNK in headers:
                whole = self._joined(joiner, message, key, value, headers[HEADER_CHUNK])
            elif joiner.first_offset is not None:
                raise TruncatedError("the last chunks of this event are missing").at(_text(joiner.key), 0)
            if whole is not None:
                yield [self._placed(key, whole)]

    def _joined(
        self, joiner: ChunkJoiner, message: Message, key: bytes, value: bytes, header: bytes
    ) -> bytes | None:
        size = sum(map(len, joiner.pieces)) + len(value)
        if size > self._max_event_size:
            raise too_large(f"an event of {size} bytes or more", self._max_event_size).at(_text(key), 0)
        try:
            return joiner.feed(key, header, value, message.offset() or 0)
        except ChunkError as error:
            if joiner.first_offset is not None:
                raise TruncatedError(str(error)).at(_text(joiner.key), 0) from error
            # A topic whose retention was lowered may begin in the middle of an event.
            self._note(f"{_text(key)}: {error}")
            return None

    def _placed(self, key: bytes, data: bytes) -> RawEvent:
        try:
            place = RawKey.parse(key)
        except ValueError as error:
            raise UserError(f"{self._topic}: {error}", ExitCode.DATA) from error
        return RawEvent(f"{self._topic}:{place.epoch}:{place.log_file}", place.log_file, place.position, data)


def _brokers_problem(brokers: str) -> str | None:
    """Say what is wrong with a list of brokers; None where nothing is."""
    if not brokers:
        return "no host"
    for broker in brokers.split(","):
        _host, colon, port = broker.rpartition(":")
        if colon and not port.isdecimal() and not broker.endswith("]"):
            return f"{port!r} is not a port"
    return None


def _text(key: bytes | None) -> str:
    return (key or b"").decode("ascii", "replace")
