"""What is too large to be held is said, with the option that allows it; output waits in files."""

import base64
import io
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner, Result

from millrace.binlog.errors import BinlogError, TooLargeError
from millrace.binlog.events import (
    QueryCompressedEvent,
    StatusVariables,
    StopEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    WriteRowsCompressedEventV1,
)
from millrace.binlog.events.mariadb import PartialRowDataEvent
from millrace.binlog.file import MAGIC
from millrace.binlog_command.inputs import FileInput
from millrace.binlog_command.options import parse_size
from millrace.binlog_command.records import LogDecoder, unpacked_limit
from millrace.binlog_command.spool import Spool, base64_lines
from millrace.binlog_command.terminal import Buffer, coloured, shown
from millrace.binlog_command.text import TextOptions, TextOutput
from millrace.binlog_command.verify import VerifyOutput
from millrace.cli import main

from .made_logs import LOGS, MadeLog, text_of

MYSQL = LOGS / "mysql.000001"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["binlog", *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("16K", 16384), ("1m", 1 << 20), ("2G", 2 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "1T", "-1", "1.5M", "1 000"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of bytes"):
        parse_size(text)


def test_events_of_a_file_are_read_up_to_the_size_given() -> None:
    whole = run("--json", "--max-event-size", "4G", str(MYSQL))
    assert whole.exit_code == 0
    assert whole.stdout == run("--json", str(MYSQL)).stdout
    cut = run("--json", "--max-event-size", "110", str(MYSQL))
    assert cut.exit_code == 1
    assert "up to 110 are read; --max-event-size allows more" in cut.stderr
    assert whole.stdout.startswith(cut.stdout)


def test_a_packed_file_has_a_bound_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred kilobytes that unpack to an event of a gigabyte are not unpacked."""
    monkeypatch.setattr("millrace.binlog_command.records.MAX_UNPACKED_SIZE", 200)
    monkeypatch.setattr("millrace.binlog_command.records._MAX_RATIO", 0)
    packed = tmp_path / "mysql.000001.zst"
    packed.write_bytes(zstandard.compress(MYSQL.read_bytes()))
    with pytest.raises(TooLargeError):
        [batch for log in FileInput([str(packed)]).logs() for batch in log]
    for source in (FileInput([str(packed)], max_event_size=1 << 20), FileInput([str(MYSQL)])):
        assert [event.data for log in source.logs() for batch in log for event in batch]


def bomb(claimed: int) -> QueryCompressedEvent:
    record = b"\x84" + claimed.to_bytes(4, "big") + zlib.compress(bytes(1000))
    return QueryCompressedEvent(9, 0, 0, StatusVariables(), "shop", record)


def decoded(log: MadeLog, size: int | None) -> list[BinlogError | type]:
    return [
        record.event if isinstance(record.event, BinlogError) else type(record.event.event)
        for record in LogDecoder(max_event_size=size).records([log.raw()])
    ]


def test_compressed_events_that_unpack_to_much() -> None:
    log = MadeLog("11.4.5-MariaDB")
    log.add(bomb(1000), bomb(2 << 30))
    log.query("DO 1")
    *_, fits, error, _ = decoded(log, None)
    assert fits is QueryCompressedEvent
    assert isinstance(error, TooLargeError)
    assert "the event unpacks to 2147483648 bytes; up to 16777216 are read; --max-event-size" in str(error)
    assert isinstance(decoded(log, 999)[-3], TooLargeError)
    assert decoded(log, 4 << 30)[-2] is QueryCompressedEvent


def test_what_is_packed_in_much_may_unpack_to_more() -> None:
    assert unpacked_limit(0) == unpacked_limit(1 << 20) == 16 << 20
    assert unpacked_limit(2 << 20) == 32 << 20
    assert unpacked_limit(1 << 30) == 1 << 30
    assert unpacked_limit(1 << 30, 5) == unpacked_limit(0, 5) == 5


def test_what_is_unpacked_twice_has_been_packed_in_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the bytes of a packed file there need not be as many of any disk."""
    monkeypatch.setattr("millrace.binlog_command.records.MAX_UNPACKED_SIZE", 500)
    log = MadeLog("11.4.5-MariaDB").add(bomb(1000))
    fits = list(LogDecoder().records([log.raw()]))[-1].event
    assert not isinstance(fits, BinlogError)
    refused = list(LogDecoder().records([[raw._replace(unpacked=True) for raw in log.raw()]]))[-1].event
    assert isinstance(refused, TooLargeError)
    fragments = MadeLog("12.3.1-MariaDB")
    fragments.add(*(PartialRowDataEvent(2, number, 0, None, bytes(400)) for number in (1, 2)))
    raws = [raw._replace(unpacked=True) for raw in fragments.raw()]
    assert isinstance(list(LogDecoder().records([raws]))[-1].event, TooLargeError)


def test_events_in_payloads_that_are_large() -> None:
    inner = MadeLog("8.0.30")
    inner.query("DO '" + "x" * 500 + "'")
    data = inner.events[-1][1][:-4]
    data = data[:9] + len(data).to_bytes(4, "little") + data[13:]
    log = MadeLog("8.0.30")
    log.add(TransactionPayloadEvent(255, len(data), data))
    assert not any(isinstance(one, BinlogError) for one in decoded(log, None))
    error = decoded(log, 300)[-1]
    assert isinstance(error, TooLargeError)
    assert "--max-event-size allows more" in str(error)


def test_fragments_that_are_large() -> None:
    log = MadeLog("12.3.1-MariaDB")
    log.add(*(PartialRowDataEvent(3, number, 0, None, bytes(1000)) for number in (1, 2, 3)))
    found = decoded(log, 1500)
    errors = [one for one in found if isinstance(one, BinlogError)]
    assert isinstance(errors[0], TooLargeError)
    assert "fragments of a rows event of 2000 bytes; up to 1500 are read" in str(errors[0])
    assert found.count(PartialRowDataEvent) == 3


def test_a_spool_gives_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.binlog_command.spool._IN_MEMORY", 100)
    monkeypatch.setattr("millrace.binlog_command.spool._PIECE", 30)
    spool = Spool()
    for size in (10, 1000):
        assert not spool
        assert not list(spool.take())
        data = bytes(range(256)) * size
        for start in range(0, len(data), 77):
            spool.write(data[start : start + 77])
        assert spool
        pieces = list(spool.take())
        assert max(map(len, pieces)) == 30
        assert b"".join(pieces) == data


@pytest.mark.parametrize("size", [0, 1, 56, 57, 58, 1000, (57 << 14) - 1, 57 << 14, (57 << 14) + 1])
def test_base64_in_pieces(size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert b"".join(base64_lines(data)) == base64.encodebytes(data)


def test_a_buffer_sends_on_or_keeps() -> None:
    stream = io.BytesIO()
    sent, kept = Buffer(stream, live=True), Buffer()
    for buffer in (sent, kept):
        buffer.line("é")
        buffer.flush()
    assert stream.getvalue() == b"".join(kept.take()) == "é\n".encode()
    assert not b"".join(sent.take())
    assert [buffer.is_plain for buffer in (sent, kept, Buffer(stream))] == [False, False, True]


def test_text_is_shown_the_same_however_it_is_cut() -> None:
    text = "# at 4\nSET é \x1b[31m ü \n".encode() + b"\xff\n### \xe2\x82"
    for size in (1, 2, 3, 7):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert b"".join(shown(pieces)) == b"".join(shown([text]))


def test_lines_are_coloured_one_by_one_or_together() -> None:
    lines = [b"# at 4\n", b"SET x\n", b"DO 1\n", b"### 1\n"]
    whole = b"".join(coloured([b"".join(lines)]))
    assert b"".join(coloured(lines)) == whole
    assert b"".join(coloured([b"# at 4\n", b"DO ", b"# at 4\n"])).endswith(b"DO # at 4\n")


def test_many_rows_are_one_line_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run("--json", str(MYSQL)).stdout
    for together in (1, 2):
        monkeypatch.setattr("millrace.binlog_command.json_output._PIECE", 1)
        monkeypatch.setattr("millrace.binlog_command.json_output._SLICE", 3)
        monkeypatch.setattr("millrace.binlog_command.json_output._TOGETHER", together)
        assert run("--json", str(MYSQL)).stdout == before
    assert any(len(json.loads(line).get("rows", ())) > 1 for line in before.splitlines())


@pytest.mark.parametrize("name", ["mysql.000001", "mariadb.000001"])
def test_rows_are_turned_round_in_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--flashback", "-v", "--force-read", str(LOGS / name))
    before = run(*arguments).stdout
    monkeypatch.setattr("millrace.binlog_command.flashback._TOGETHER", 2)
    monkeypatch.setattr("millrace.binlog_command.verify._TOGETHER", 2)
    assert run(*arguments).stdout == before
    assert run("--verify", str(LOGS / name)).exit_code == 0


def large_rows(size: int, *, says: int = 0) -> MadeLog:
    """A log of MariaDB in which a LONGTEXT of so many bytes is packed into a few."""
    table_map = TableMapEvent(7, 1, "shop", "t", bytes((3, 252)), b"\4", b"\2")
    images = b"\0\1\0\0\0" + size.to_bytes(4, "little") + (b"it's " * (size // 5 + 1))[:size]
    record = b"\x84" + (len(images) + says).to_bytes(4, "big") + zlib.compress(images)
    log = MadeLog("11.4.5-MariaDB").add(table_map)
    return log.add(WriteRowsCompressedEventV1(7, 1, b"", 2, b"", b"\3", record), StopEvent())


def file_of(log: MadeLog, path: Path) -> str:
    path.write_bytes(MAGIC + b"".join(data for _, data in log.events))
    return str(path)


@pytest.mark.parametrize("size", [0, 56, 57, 4000])
def test_rows_that_are_written_as_they_are_unpacked_are_the_same(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.binlog.inflate._PIECE", 1000)
    log = large_rows(size)
    whole = text_of(log)
    monkeypatch.setattr("millrace.binlog_command.rows_event_text._IN_MEMORY", 0)
    assert text_of(log) == whole
    assert "# Number of rows: 1\n" in whole


def test_rows_of_any_size_are_read_where_they_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By text that needs no values; --verify unpacks them, and says what it has not compared."""
    monkeypatch.setattr("millrace.binlog_command.rows_event_text._IN_MEMORY", 0)
    log = file_of(large_rows(3000), tmp_path / "bin.000001")
    whole = run(log)
    for module in ("records", "rows_event_text", "verify"):
        monkeypatch.setattr(f"millrace.binlog_command.{module}.MAX_UNPACKED_ROWS", 1000)
    monkeypatch.setattr("millrace.cli.binlog.MAX_UNPACKED_ROWS", 1000)
    monkeypatch.setattr("millrace.binlog_command.records.MAX_UNPACKED_SIZE", 1000)
    monkeypatch.setattr("millrace.binlog_command.records._MAX_RATIO", 0)
    monkeypatch.setattr("millrace.cli.binlog.unpacked_limit", lambda _packed, given: given or 1000)
    text = run(log)
    assert text.exit_code == 0
    uncounted = "# Number of rows: not counted, they are too large"
    assert text.stdout == whole.stdout.replace("# Number of rows: 1", uncounted)
    verified = run("--verify", log)
    assert verified.exit_code == 9
    assert f"{log}:" in verified.stdout
    assert "note: the rows unpack to 3009 bytes, and are not compared; up to 1000 are" in verified.stdout
    assert "not all checked, 1 note: 4 events" in verified.stdout
    assert verified.stdout.endswith("; the contents of 1 events were not compared\n")
    complete = run("--verify", "--max-event-size", "1M", log)
    assert (complete.exit_code, complete.stdout[:15]) == (0, "sound: 4 events")
    for way in (("-v",), ("--json",), ("--stats",), ("--flashback",)):
        refused = run(*way, log)
        assert refused.exit_code in (1, 8)
        assert "the event unpacks to 3009 bytes; up to 1000 are read; --max-event-size" in refused.stderr
        assert run(*way, "--max-event-size", "1M", log).exit_code == 0


@pytest.mark.parametrize("says", [-1, 1])
@pytest.mark.parametrize("limit", [1000, 1 << 20])
def test_rows_that_are_damaged_are_found_however_large_they_are(
    says: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.binlog_command.rows_event_text._IN_MEMORY", limit)
    monkeypatch.setattr("millrace.cli.binlog.MAX_UNPACKED_ROWS", limit)
    log = file_of(large_rows(3000, says=says), tmp_path / "bin.000001")
    verified = run("--verify", log)
    assert verified.exit_code == 1
    assert ": the rows cannot be read: a compressed record " in verified.stdout
    text = run(log).stdout
    assert "# This event cannot be read: " in text
    assert text.count("BINLOG '") == text.count("'/*!*/;")


def test_large_rows_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is larger than what may be held, written as text and checked."""
    monkeypatch.setattr("millrace.binlog.inflate._PIECE", 1 << 14)
    for name in ("_IN_MEMORY", "MAX_UNPACKED_ROWS"):
        monkeypatch.setattr(f"millrace.binlog_command.rows_event_text.{name}", 1000)
    log = large_rows(2 << 20)
    tracemalloc.start()
    try:
        lines: list[str] = []
        verify = VerifyOutput(lines.append, max_rows=1000)
        text = TextOutput(_Nothing(), TextOptions(max_unpacked=1000))
        for record in LogDecoder(large_rows=True).records([log.raw()]):
            verify.write(record)
            text.write(record)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


class _Nothing(io.BytesIO):
    def write(self, data: Any) -> int:
        return len(data)
