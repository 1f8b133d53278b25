"""What lies between two services is counted from the records alone."""

import struct
import time
from typing import Any

import pytest

from millrace.avro.service_state import ReaderState
from millrace.binlog.types import EventType
from millrace.mysql.status import LogFile
from millrace.status import lag
from millrace.status.collect import ServerStatus, _lag_of_reader
from millrace.status.lag import Lag, Step, count, gtids_between, raw_step


class Record:
    """A record as confluent_kafka gives it."""

    def __init__(
        self, value: bytes, headers: list[tuple[str, bytes]] | None = None, age_s: float = 0
    ) -> None:
        self._value, self._headers, self._age_s = value, headers, age_s

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, int((time.time() - self._age_s) * 1000)


def raw(kind: EventType, body: bytes = b"", **others: Any) -> Any:
    return Record(struct.pack("<IBIIIH", 0, kind, 1, 19 + len(body), 0, 0) + body, **others)


def test_raw_records() -> None:
    assert raw_step(raw(EventType.GTID_LOG_EVENT, b"12345678")) == Step(27, True)
    assert raw_step(raw(EventType.XID_EVENT, b"12345678")) == Step(27, False, gtid=False)
    assert raw_step(raw(EventType.QUERY_EVENT, b"...BEGIN")) == Step(27, True, gtid=False)
    assert raw_step(raw(EventType.QUERY_EVENT, b"...BEGINcrc!")) == Step(31, True, gtid=False)
    assert raw_step(raw(EventType.GTID_LOG_EVENT, headers=[("artificial", b"1")])) == Step(0, False)
    assert raw_step(Record(b"note", [("marker", b"abandoned")])) == Step(0, False)  # type: ignore[arg-type]
    first = raw(EventType.WRITE_ROWS_EVENT, bytes(81), headers=[("chunk", b"0/2")])
    assert raw_step(first) == Step(100, False, gtid=False)
    assert raw_step(raw(EventType.GTID_LOG_EVENT, bytes(81), headers=[("chunk", b"1/2")])) == Step(100, False)


def test_a_transaction_with_gtid_counts_once() -> None:
    begin = raw(EventType.QUERY_EVENT, b"BEGIN")
    gtid = raw(EventType.GTID_LOG_EVENT)
    assert count([gtid, begin, gtid, begin], raw_step).transactions == 2
    assert count([begin, begin, begin], raw_step).transactions == 3


def test_seconds_are_the_age_of_the_oldest() -> None:
    found = count([raw(EventType.XID_EVENT, age_s=100), raw(EventType.XID_EVENT, age_s=5)], raw_step)
    assert found.seconds is not None
    assert found.seconds >= 100
    assert (found.bytes, found.transactions, found.records, found.exact) == (38, 0, 2, True)


def test_nothing_pending() -> None:
    assert count([], raw_step) == Lag(0, 0.0, 0, 0)
    assert count([], None) == Lag(0, 0.0, 0, 0)


def test_records_alone() -> None:
    found = count([raw(EventType.XID_EVENT)], None)
    assert (found.bytes, found.transactions, found.records) == (None, None, 1)


def test_counting_ends_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_LIMIT_RECORDS", 3)
    found = count([raw(EventType.GTID_LOG_EVENT)] * 5, raw_step)
    assert (found.transactions, found.records, found.exact) == (3, 3, False)


UUID, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("reached", "end", "missing"),
    [
        (f"{UUID}:1-5", f"{UUID}:1-5", 0),
        (f"{UUID}:1-5", f"{UUID}:1-7:9,{OTHER}:1-10", 13),
        (f"{UUID}:1-5", f"{UUID}:1-5:tag:1-3", 3),
        ("0-1-100", "0-2-110,1-1-5", 15),
        ("0-1-100", "0-1-100", 0),
        ("", f"{UUID}:1-5", None),
        ("0-1-100", "", None),
    ],
)
def test_gtids_between(reached: str, end: str, missing: int | None) -> None:
    assert gtids_between(reached, end) == missing


def test_the_reader_is_compared_with_the_servers_log_over_files() -> None:
    logs = tuple(LogFile(f"mysql-bin.00000{number}", 1000 * number) for number in (1, 2, 3))
    server = ServerStatus("db1:3306", "mysql-bin.000003", 2500, f"{UUID}:1-9", logs=logs)

    def behind(log_file: str, position: int) -> Lag:
        state = ReaderState(0, log_file, position, gtid_set=f"{UUID}:1-4", last_timestamp=1)
        return _lag_of_reader(state, server)

    far = behind("mysql-bin.000001", 400)
    assert (far.bytes, far.transactions) == (600 + 2000 + 2500, 5)
    assert behind("mysql-bin.000003", 2500) == Lag(0, 0.0, 0)
    assert behind("mysql-bin.000009", 4) == Lag(None, None, 5)
    assert _lag_of_reader(ReaderState(0, "x", 4), ServerStatus("db1", error="gone")) == Lag(None, None, None)
