"""``--verify``: sound logs are sound, and each kind of damage is found where it is."""

from pathlib import Path
from typing import NoReturn

import pytest
import zstandard
from click.testing import CliRunner, Result

from millrace.binlog.checksum import compute_checksum
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.events import StopEvent
from millrace.cli import main

from .made_logs import MadeLog

LOGS = Path(__file__).parent / "logs"
MYSQL = LOGS / "mysql.000001"
MARIADB = LOGS / "mariadb.000001"
SOUND = MYSQL.read_bytes()


def verify(*paths: Path) -> Result:
    return CliRunner().invoke(main, ["binlog", "--verify", *map(str, paths)], catch_exceptions=False)


def findings(*paths: Path) -> list[str]:
    outcome = verify(*paths)
    assert outcome.exit_code == 1
    return outcome.stdout.splitlines()


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "log.000001"
    path.write_bytes(data)
    return path


def reseal(data: bytearray, position: int) -> None:
    size = int.from_bytes(data[position + 9 : position + 13], "little")
    data[position + size - 4 : position + size] = compute_checksum(
        bytes(data[position : position + size - 4])
    )


def test_sound_logs() -> None:
    outcome = verify(MYSQL)
    assert outcome.exit_code == 0
    assert outcome.stdout == "sound: 58 events, 4731 bytes in 1 log\n"


def test_what_was_not_checked_is_said(tmp_path: Path) -> None:
    """A log without events, beside a sound one too; and events without checksums."""
    empty = written(tmp_path, SOUND[:4])
    assert findings(empty) == [f"{empty}: the log has no events", "1 finding: 0 events, 0 bytes in 1 log"]
    assert findings(empty, MYSQL)[-1] == "1 finding: 58 events, 4731 bytes in 2 logs"
    made = MadeLog("5.5.34").add(StopEvent())
    outcome = verify(written(tmp_path, SOUND[:4] + b"".join(data for _, data in made.events)))
    assert outcome.exit_code == 0
    assert outcome.stdout.endswith("; 2 events have no checksum\n")


def test_a_log_that_does_not_go_on_is_noted() -> None:
    outcome = verify(MYSQL, MARIADB)
    assert outcome.exit_code == 0
    assert outcome.stdout.splitlines() == [
        f"{MARIADB}:4: note: the log before it continues in mysql-bin.000002",
        "sound, 1 note: 117 events, 9051 bytes in 2 logs",
    ]


def test_a_wrong_checksum(tmp_path: Path) -> None:
    data = bytearray(SOUND)
    data[1880] ^= 1
    path = written(tmp_path, data)
    first, *_ = findings(path)
    assert first.startswith(f"{path}:1859: checksum ")


def test_a_wrong_position(tmp_path: Path) -> None:
    data = bytearray(SOUND)
    data[1859 + 13] ^= 1
    reseal(data, 1859)
    path = written(tmp_path, data)
    assert findings(path) == [
        f"{path}:1859: next_position is 1891, not 1890",
        "1 finding: 58 events, 4731 bytes in 1 log",
    ]


def test_a_transaction_that_does_not_end(tmp_path: Path) -> None:
    data = bytearray(SOUND)
    del data[1859:1890]
    path = written(tmp_path, data)
    found = findings(path)
    assert f"{path}:1859: next_position is 1969, not 1938" in found
    assert any(f"{path}:1859: the transaction " in line and " is cut off here" in line for line in found)


def test_a_log_that_ends_in_a_transaction(tmp_path: Path) -> None:
    path = written(tmp_path, SOUND[:1859])
    assert findings(path)[0].startswith(f"{path}:1793: the log ends within the transaction ")

    data = bytearray(SOUND[:1859])
    data[21] |= 1
    reseal(data, 4)
    outcome = verify(written(tmp_path, data))
    assert outcome.exit_code == 0
    assert ": note: the log ends within the transaction " in outcome.stdout


def test_a_cut_event(tmp_path: Path) -> None:
    path = written(tmp_path, SOUND[:-3])
    outcome = verify(path)
    assert outcome.exit_code == 1
    assert (
        f"{path}:4688: the log ends in the middle of an event of 47 bytes, 44 bytes are there\n"
        in outcome.stdout
    )


def test_rows_that_are_not_what_they_say(tmp_path: Path) -> None:
    data = bytearray(SOUND)
    del data[1635 + 40]
    data[1635 + 9] -= 1
    reseal(data, 1635)
    path = written(tmp_path, data)
    assert f"{path}:1635: the rows cannot be read: " in verify(path).stdout


def test_bits_that_mean_nothing(tmp_path: Path) -> None:
    """A bit after the bitmap of NULL columns is set in the second row, not in the first."""

    data = bytearray(SOUND)
    event = bytes(data[1635:1692])
    nulls = event.index(b"\x3e\x02\0\0\0")
    data[1635 + nulls] |= 0x80
    reseal(data, 1635)
    path = written(tmp_path, data)
    assert (
        verify(path)
        .stdout.splitlines()[0]
        .startswith(f"{path}:1635: the rows, encoded again, differ from byte ")
    )


def test_types_that_are_not_known_are_noted(tmp_path: Path) -> None:
    data = bytearray(SOUND)
    data[1859 + 4] = 99
    reseal(data, 1859)
    path = written(tmp_path, data)
    verified = verify(path)
    assert (
        f"{path}:1859: note: event type 99 is not known; such events are kept as they are"
        in verified.stdout.splitlines()
    )
    assert verified.stdout.endswith("; the contents of 1 events were not compared\n")


@pytest.mark.parametrize("damaged_first", [True, False])
def test_a_foreign_file_does_not_hide_the_others(damaged_first: bool, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"hello")
    outcome = verify(*((foreign, MYSQL) if damaged_first else (MYSQL, foreign)))
    assert outcome.exit_code == 1
    assert f"{foreign}:0: not a binary log" in outcome.stdout
    assert outcome.stdout.splitlines()[-1].endswith(": 58 events, 4731 bytes in 2 logs")


def test_an_event_that_is_written_otherwise_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise InvalidValueError("it does not fit")

    monkeypatch.setattr("millrace.binlog_command.verify.encode_event", refuse)
    assert verify(MYSQL).stdout.splitlines()[0] == (
        f"{MYSQL}:4: FORMAT_DESCRIPTION_EVENT cannot be encoded again: it does not fit"
    )
    monkeypatch.setattr("millrace.binlog_command.verify.encode_event", lambda *_: b"")
    assert verify(MYSQL).stdout.splitlines()[0] == (
        f"{MYSQL}:4: FORMAT_DESCRIPTION_EVENT, encoded again, differs from byte 0 on"
    )


DESCRIPTION_END = 124
"""Where the format description of MYSQL ends."""


def test_a_log_without_its_format_description(tmp_path: Path) -> None:
    """One finding, with the number of the events; the log is not taken for one of MySQL 4."""

    data = bytearray(SOUND)
    del data[4:DESCRIPTION_END]
    path = written(tmp_path, data)
    finding, last = findings(path)
    assert finding == (
        f"{path}:4: the log has no format description, which every log since MySQL 5.0 begins with: "
        "events cannot be read (56 times)"
    )
    assert last == "1 finding: 1 events, 4611 bytes in 1 log"
    text = CliRunner().invoke(main, ["binlog", str(path)])
    assert text.exit_code == 1
    assert "comes before any format description" in text.stderr


@pytest.mark.parametrize("type_code", [0, 7, 14, 99])
def test_a_format_description_of_another_type(type_code: int, tmp_path: Path) -> None:
    data = bytearray(SOUND)
    data[8] = type_code
    outcome = verify(written(tmp_path, data))
    assert outcome.exit_code == 1
    assert "the log has no format description" in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("1 finding: ")


def test_logs_of_mysql_4_need_no_format_description(tmp_path: Path) -> None:
    """They have it in the first log after a start of the server alone (a vector made by hand)."""
    stop = bytes(4) + b"\x03" + bytes(4) + b"\x13\0\0\0" + b"\4\0\0\0" + b"\0\0"
    path = tmp_path / "log.000002"
    path.write_bytes(b"\xfebin" + stop)
    assert verify(path).stdout.splitlines() == [
        f"{path}:4: note: the log does not say its format; it is read as one of MySQL 4.0 or 4.1",
        "sound, 1 note: 1 events, 19 bytes in 1 log",
    ]


def test_a_wrong_checksum_of_the_format_description_is_one_finding(tmp_path: Path) -> None:
    data = bytearray(SOUND)
    data[30] ^= 1
    path = written(tmp_path, data)
    first, last = findings(path)
    assert first.startswith(f"{path}:4: checksum ")
    assert last == "1 finding: 57 events, 4731 bytes in 1 log"
    forced = CliRunner().invoke(main, ["binlog", "--force-read", "--json", str(path)])
    assert len(forced.stdout.splitlines()) == 58


def test_a_format_description_that_does_not_serve_is_one_finding_more(tmp_path: Path) -> None:
    data = bytearray(SOUND)
    data[DESCRIPTION_END - 5] = 0  # the algorithm: no event has a checksum then
    path = written(tmp_path, data)
    first, second, last = verify(path).stdout.splitlines()
    assert first.startswith(f"{path}:4: checksum ")
    assert "the format description is damaged, and what follows does not fit it: " in second
    assert second.endswith(" times)")
    assert last.startswith("2 findings: ")


def test_an_encrypted_log_without_its_key_is_one_finding() -> None:
    log = LOGS.parent.parent / "binlog" / "encrypted" / "mariadb-ctr256.000001"
    assert findings(log)[0] == (
        f"{log}:296: the log is encrypted from the START_ENCRYPTION event on; its key is needed (20 times)"
    )


@pytest.mark.parametrize("cut", [4688, 1890, DESCRIPTION_END])
def test_a_log_that_is_cut_at_the_end_of_an_event(cut: int, tmp_path: Path) -> None:
    path = written(tmp_path, SOUND[:cut])
    outcome = verify(path)
    assert outcome.exit_code == 1
    assert ": the log ends without ROTATE or STOP, and is not marked as in use: what " in outcome.stdout
    assert "1 finding" in outcome.stdout
    data = bytearray(SOUND[:cut])
    data[21] |= 1
    assert verify(written(tmp_path, data)).exit_code == 0


def test_a_log_in_the_middle_that_is_cut(tmp_path: Path) -> None:
    path = written(tmp_path, SOUND[:4688])
    lines = verify(path, MARIADB).stdout.splitlines()
    assert lines[0].startswith(f"{path}:4597: the log ends without ROTATE or STOP")
    assert lines[-1].startswith("1 finding")


@pytest.mark.parametrize("end", [4735, 4688])
@pytest.mark.parametrize("magic", [True, False])
def test_two_logs_that_were_joined(end: int, magic: bool, tmp_path: Path) -> None:
    path = written(tmp_path, SOUND[:end] + SOUND[0 if magic else 4 :])
    outcome = verify(path)
    assert outcome.exit_code == 1
    assert f"{path}:{end}: another log begins here, " in outcome.stdout
    assert "files were joined" in outcome.stdout


def test_half_a_zstd_file(tmp_path: Path) -> None:
    """Cut where an event ends in the last block that is whole: nothing else would tell."""
    pack = zstandard.ZstdCompressor().compressobj()
    data = MYSQL.read_bytes()
    flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    half = pack.compress(data[:1890]) + pack.flush(flush)
    whole = half + pack.compress(data[1890:]) + pack.flush()
    path = tmp_path / "log.000001.zst"
    path.write_bytes(whole)
    assert verify(path).exit_code == 0
    for size in (len(half), len(half) - 3, len(whole) - 1, 20):
        path.write_bytes(whole[:size])
        outcome = verify(path)
        assert outcome.exit_code == 1
        assert "the file cannot be unpacked further: " in outcome.stdout
        assert "before the end of its last frame" in outcome.stdout
    text = CliRunner().invoke(main, ["binlog", "--json", str(path)])
    assert text.exit_code == 1
    assert "compressed file ended before the end of its last frame" in text.stderr
