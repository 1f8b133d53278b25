"""TRANSACTION_PAYLOAD: unpacked as it is asked for, whatever its size."""

import io
import os
import subprocess
import sys

import pytest
import zstandard

from millrace.binlog.errors import BinlogError, InvalidValueError, TruncatedError, UnsupportedError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import TransactionPayloadEvent
from millrace.binlog.events.transaction import inner_events
from millrace.binlog.file import MAGIC, iter_events
from tests.shared import PROJECT
from tests.unit.binlog.cases import CASES, MYSQL_97, make_event, state_of

INNER = [make_event(29, b"\xff" + bytes([number]) * 5000, checksum=False) for number in range(40)]
PLAIN = b"".join(INNER)
EVENTS = {
    0: TransactionPayloadEvent(0, len(PLAIN), zstandard.compress(PLAIN)),
    255: TransactionPayloadEvent(255, len(PLAIN), PLAIN),
}


def log_with(event: TransactionPayloadEvent) -> bytes:
    return MAGIC + make_event(40, event.encode_fields(0)) + make_event(16, bytes(8))


def test_real_payload_gives_its_events() -> None:
    case = next(case for case in CASES if isinstance(case.event, TransactionPayloadEvent))
    assert isinstance(case.event, TransactionPayloadEvent)
    state = state_of(case.server).for_payload()
    types = [decode_event(data, state).header.type_code for data in case.event.events()]
    assert (types[0], types[-1]) == (2, 16)


@pytest.mark.parametrize("compression", EVENTS)
def test_events_of_a_payload(compression: int) -> None:
    assert list(EVENTS[compression].events()) == INNER


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        (TransactionPayloadEvent(255, len(PLAIN), PLAIN[:-1]), TruncatedError, "ends with 5019 bytes of an"),
        (TransactionPayloadEvent(255, len(PLAIN) + 1, PLAIN), TruncatedError, "unpacks to .* of .* bytes"),
        (TransactionPayloadEvent(255, 3, PLAIN), InvalidValueError, "more than 3 bytes, its size"),
        (TransactionPayloadEvent(255, None, bytes(30)), InvalidValueError, "less than its header"),
        (TransactionPayloadEvent(0, 3, b"no zstd"), InvalidValueError, "cannot be unpacked"),
        (TransactionPayloadEvent(3, 3, b""), UnsupportedError, "compression type 3"),
    ],
)
def test_damaged(event: TransactionPayloadEvent, error: type[BinlogError], words: str) -> None:
    with pytest.raises(error, match=words):
        list(event.events())


def test_head_that_lacks_a_field() -> None:
    with pytest.raises(InvalidValueError, match="lacks its size or its compression"):
        decode_event(make_event(40, b"\2\1\0\0abc"), state_of(MYSQL_97))
    with pytest.raises(InvalidValueError, match="gives its size as 3, 4 bytes follow it"):
        decode_event(make_event(40, b"\1\1\3\2\1\0\0abcd"), state_of(MYSQL_97))


_UNPACK_1_GB = """
import resource, sys
import zstandard
from millrace.binlog.events import TransactionPayloadEvent
from tests.unit.binlog.cases import make_event

inner = make_event(29, bytes((1 << 20) - 19), checksum=False)
compressor = zstandard.ZstdCompressor(level=1).compressobj()
payload = b"".join(compressor.compress(inner) for _ in range(1024)) + compressor.flush()
event = TransactionPayloadEvent(0, 1 << 30, payload)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert sum(len(data) for data in event.events()) == 1 << 30
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(payload), (after - before) * 1024)
"""


def test_1_gb_takes_little_memory() -> None:
    """A process of its own shows how much it ever had, zstd's buffers included."""
    done = subprocess.run(
        [sys.executable, "-c", _UNPACK_1_GB],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    compressed, grown = map(int, done.stdout.split())
    assert compressed < 1 << 20
    assert grown < 32 << 20


def test_log_with_a_payload_is_cut_as_any_other() -> None:
    log = log_with(EVENTS[0])
    assert [data[4] for _, data in iter_events(io.BytesIO(log))] == [40, 16]


@pytest.mark.parametrize("held", [0, 40, 1 << 20])
@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_large_events_are_given_by_their_beginnings(held: int, size: int) -> None:
    content = b"".join(INNER)
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    found = []
    for event in inner_events(pieces, len(content), held):
        if isinstance(event, bytes):
            found.append(event)
            continue
        assert event.size > held
        assert content[event.start :].startswith(event.head)
        found.append(content[event.start : event.start + event.size])
    assert found == INNER


def test_a_large_event_that_is_cut() -> None:
    content = b"".join(INNER)[:-1]
    with pytest.raises(TruncatedError, match="a payload ends 1 bytes before the end of an event"):
        list(inner_events([content[:-3], content[-3:]], None, 0))
    with pytest.raises(TruncatedError, match="a payload ends with 5019 bytes of an event that is longer"):
        list(inner_events([content[:-3], content[-3:]], None))
