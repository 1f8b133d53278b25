"""What is counted where a log is carried through codec and stages, whatever the time it takes."""

from pathlib import Path

import pytest

from benchmarks.codec import measure_codec, measure_stages
from benchmarks.pipeline import SERVICES
from benchmarks.programs import TO_AVRO, measure_programs
from millrace.binlog.events import GtidLogEvent, UpdateRowsEvent, WriteRowsEvent, XidEvent
from tests.unit.binlog_command import made_logs
from tests.unit.binlog_command.made_logs import TABLE_MAP, MadeLog, rows

SID = bytes(range(16))


def write_log(path: Path, transactions: int, events: int) -> int:
    """Write transactions of inserts, and one of an update; give the number of rows."""
    log = MadeLog(name=path.name)
    for number in range(transactions + 1):
        log.add(GtidLogEvent(0, SID, number + 1, 2, 0, 1, 1, None, 100, 80030))
        log.query("BEGIN")
        if number == transactions:
            change = rows(((1, "a"), (1, "b")))
            log.add(TABLE_MAP, UpdateRowsEvent(7, 1, b"", 2, b"\x03", b"\x03", change))
        else:
            for event in range(events):
                data = rows(*((None, (row, "x" * 80)) for row in range(100)))
                last = int(event == events - 1)
                log.add(TABLE_MAP, WriteRowsEvent(7, last, b"", 2, b"", b"\x03", data))
        log.add(XidEvent(number))
    path.write_bytes(b"\xfebin" + b"".join(data for _, data in log.events))
    return 100 * events * transactions + 1


def test_every_row_goes_through_every_stage(tmp_path: Path) -> None:
    path = tmp_path / "bin.000001"
    rows_written = write_log(path, transactions=300, events=1)
    result = measure_stages(path)
    assert result.rows == rows_written
    assert result.events == 1 + 301 * 5
    assert tuple(result.cpu_s) == SERVICES
    codec = measure_codec(path)
    assert (codec.events, codec.rows) == (result.events, result.rows)


def test_a_transaction_that_is_not_held_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_ROWS_BUFFER_MIB", "1")
    path = tmp_path / "bin.000001"
    rows_written = write_log(path, transactions=2, events=200)
    assert path.stat().st_size > 2 << 20
    assert measure_stages(path).rows == rows_written


def test_programs_are_run_on_the_log(tmp_path: Path) -> None:
    used = measure_programs(Path(made_logs.__file__).parent / "logs" / "mysql.000001", None)
    assert tuple(used) == ("-vv", "--json", "--stats", "--verify", TO_AVRO)
    assert all(seconds > 0 for seconds in used.values())
    with pytest.raises(RuntimeError, match="ended with exit code"):
        measure_programs(tmp_path / "missing", None)
