"""What must be true at the end, whatever happened: nothing is missing, nothing twice, all is in order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import Message

from millrace.binlog.file import MAGIC
from millrace.contract import HEADER_ARTIFICIAL, HEADER_CHUNK, HEADER_MARKER, EventKey, RawKey
from millrace.kafka.client import connect
from millrace.kafka.read import read_topic
from millrace.mysql.connection import MysqlConnection
from millrace.verify.tables import Records, compare_tables, table_names
from tests.chaos.stack import DATABASE, Stack

_IN_USE_BYTE = len(MAGIC) + 17
"""Of the format description's flags; set while a file is open, or by a server that was killed."""

_SHOWN = 5


@dataclass
class Verdict:
    """What was looked at, and all that was wrong."""

    counts: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str) -> None:
        """Add a problem."""
        self.problems.append(problem)


def check(stack: Stack, say: Callable[[str], None]) -> Verdict:
    """Read all topics and compare them with the server; services must have read everything and have ended."""
    verdict = Verdict()
    say("comparing row topics with tables")
    _compare(stack, verdict)
    say("reading the raw topic")
    _raw(stack, verdict)
    say("reading the events topic")
    _events(stack, verdict)
    say("reading the row topics")
    _rows(stack, verdict)
    dead_letters = len(list(read_topic(stack.settings, stack.topics.deadletter)))
    verdict.counts["dead letters"] = dead_letters
    if dead_letters:
        verdict.note(f"there are {dead_letters} dead letters")
    if not verdict.counts["records of aborted transactions"]:
        verdict.note("no transaction of Kafka was aborted")
    return verdict


def _compare(stack: Stack, verdict: Verdict) -> None:
    with MysqlConnection(stack.server.root_address) as connection:
        names = table_names(connection, DATABASE)
        rows = 0
        for found in compare_tables(
            connection, stack.settings, stack.schemas, source=stack.source, database=DATABASE, tables=names
        ):
            rows += found.rows
            if not found.equal:
                verdict.note(
                    f"table {found.table}: topic lacks {found.missing} rows, has {found.surplus} too many; "
                    + "; ".join(found.examples)
                )
    verdict.counts["tables equal to their topics"] = len(names)
    verdict.counts["rows in them"] = rows


def _raw(stack: Stack, verdict: Verdict) -> None:
    """Put the files together again as the topic has them, one at a time; compare them with the server's."""
    expected = {path.name: path for path in stack.server.binlog_files[:-1]}
    order = _Order("raw", verdict)
    equal, chunks, current, parts = 0, 0, None, [MAGIC]

    def finish() -> int:
        if current is None or current[1] not in expected:
            return 0
        ours, theirs = b"".join(parts), expected.pop(current[1]).read_bytes()
        if _without_flag(ours) == _without_flag(theirs):
            return 1
        verdict.note(f"{current[1]}: {len(ours)} bytes in the topic, {len(theirs)} on the server, or others")
        return 0

    for message in _records(stack, stack.topics.raw, verdict):
        headers = dict(message.headers() or ())
        key = RawKey.parse(message.key())
        chunk = int(headers.get(HEADER_CHUNK, b"0/1").partition(b"/")[0])
        chunks += HEADER_CHUNK in headers
        order.see((key.epoch, key.log_file, key.position, chunk, HEADER_MARKER in headers))
        if (key.epoch, key.log_file) != current:
            equal += finish()
            current, parts = (key.epoch, key.log_file), [MAGIC]
        if HEADER_ARTIFICIAL not in headers and HEADER_MARKER not in headers:
            parts.append(message.value())
    finish()
    for name in expected:
        verdict.note(f"{name} is not in the raw topic")
    verdict.counts["closed log files equal to the server's"] = equal
    verdict.counts["raw records"] = order.count
    verdict.counts["chunks among them"] = chunks


def _without_flag(data: bytes) -> bytes:
    return data[:_IN_USE_BYTE] + data[_IN_USE_BYTE + 1 :]


def _events(stack: Stack, verdict: Verdict) -> None:
    order = _Order("events", verdict)
    inner = 0
    for message in _records(stack, stack.topics.events, verdict):
        headers = dict(message.headers() or ())
        key = EventKey.parse(message.key())
        chunk = int(headers.get(HEADER_CHUNK, b"0/1").partition(b"/")[0])
        inner += key.sub_index > 0
        raw = key.raw
        order.see((raw.epoch, raw.log_file, raw.position, key.sub_index, chunk, HEADER_MARKER in headers))
    verdict.counts["events"] = order.count
    verdict.counts["events inside payloads"] = inner


def _rows(stack: Stack, verdict: Verdict) -> None:
    prefix = f"{stack.source}.{DATABASE}."
    topics = [
        name for name in connect(stack.settings).list_topics(timeout=30).topics if name.startswith(prefix)
    ]
    records = Records(stack.schemas)
    rows = 0
    for topic in sorted(topics):
        order = _Order(topic, verdict)
        for message in _records(stack, topic, verdict):
            source = records.read(message.value())["source"]
            order.see(tuple(source[part] for part in ("epoch", "file", "pos", "sub_index", "row")))
        rows += order.count
    verdict.counts["row topics"] = len(topics)
    verdict.counts["row records"] = rows
    order = _Order("transactions", verdict)
    seen: set[tuple[str, str]] = set()
    transactions = 0
    for message in _records(stack, stack.topics.transactions, verdict):
        record = records.read(message.value())
        one = record["id"], record["status"]
        if one in seen:
            verdict.note(f"transactions: {one[1]} of {one[0]} is there twice")
        seen.add(one)
        transactions += record["status"] == "END"
    if len(seen) != 2 * transactions:
        verdict.note(f"transactions: {len(seen)} boundaries of {transactions} transactions")
    verdict.counts["transactions"] = transactions


def _records(stack: Stack, topic: str, verdict: Verdict) -> Iterator[Message]:
    """Yield a topic's committed records; count those that were aborted."""
    committed = 0
    for message in read_topic(stack.settings, topic):
        committed += 1
        yield message
    everything = sum(1 for _ in read_topic(stack.settings, topic, isolation="read_uncommitted"))
    aborted = verdict.counts.get("records of aborted transactions", 0)
    verdict.counts["records of aborted transactions"] = aborted + everything - committed


class _Order:
    """Sees to it that places only grow: so none is there twice, and the order is the log's."""

    def __init__(self, topic: str, verdict: Verdict) -> None:
        self.count = 0
        self._topic = topic
        self._verdict = verdict
        self._last: tuple[object, ...] | None = None
        self._found = 0

    def see(self, place: tuple[object, ...]) -> None:
        """Take the next record's place."""
        self.count += 1
        if self._last is not None and not self._last < place:
            self._found += 1
            if self._found <= _SHOWN:
                self._verdict.note(f"{self._topic}: {place} comes after {self._last}")
        self._last = place
