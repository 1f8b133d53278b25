"""Where the raw topic and the log differ first."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.errors import RefusedError
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.verify.raw import LogBytes, compare_raw, folder_log
from millrace.verify.snapshot import take_snapshot

LOG = {"bin.000001": b"\xfebin" + bytes(range(100)), "bin.000002": b"\xfebin" + bytes(range(50))}
CUTS = (0, 30, 31, 100)


def topic(log=LOG, start=4):
    """The log in events of 30, 1 and 69 bytes."""
    for file, data in log.items():
        for first, last in itertools.pairwise(CUTS):
            event = data[4 + first : 4 + last]
            if event and 4 + first >= start:
                yield LogBytes(file, 4 + first, event, 4 + first)
        start = 4


@pytest.fixture
def folder(tmp_path):
    for name, data in LOG.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "bin.index").write_text("./bin.000001\n./bin.000002\n")
    (tmp_path / "other.000001").write_bytes(b"\xfebin")
    return tmp_path


def compared(folder, pieces):
    return compare_raw(pieces, folder_log(folder))


def test_equal(folder):
    outcome = compared(folder, topic())
    assert outcome.difference is None
    assert (outcome.bytes, outcome.files) == (150, set(LOG))
    assert (outcome.first, outcome.last) == ("bin.000001 position 4", "bin.000002 position 54")
    assert not outcome.goes_on


def test_the_topic_may_begin_late_and_end_early(folder):
    pieces = list(topic(start=34))
    outcome = compared(folder, pieces[:-1])
    assert outcome.difference is None
    assert outcome.goes_on
    assert compared(folder, pieces[:3]).goes_on
    assert outcome.first == "bin.000001 position 34"


def test_another_byte(folder):
    (folder / "bin.000002").write_bytes(LOG["bin.000002"].replace(b"\x22", b"\xdd"))
    assert compared(folder, topic()).difference == (
        "bin.000002 position 38 (byte 3 of the event at 35): the topic has 22, the log dd"
    )


def test_in_use_is_no_difference(folder):
    data = bytearray(LOG["bin.000001"])
    data[21] ^= 1
    (folder / "bin.000001").write_bytes(data)
    assert compared(folder, topic()).difference is None
    data[21] ^= 2
    (folder / "bin.000001").write_bytes(data)
    assert "position 21 (byte 17 of the event at 4)" in compared(folder, topic()).difference


def test_a_missing_event(folder):
    pieces = [piece for piece in topic() if piece.position != 34]
    assert compared(folder, pieces).difference == (
        "the topic continues at bin.000001 position 35, the log at bin.000001 position 34"
    )


def test_an_event_too_many(folder):
    pieces = list(topic())
    assert compared(folder, [*pieces[:2], pieces[1], *pieces[2:]]).difference == (
        "the topic continues at bin.000001 position 34, the log at bin.000001 position 35"
    )


def test_a_file_that_the_topic_has_not_whole(folder):
    pieces = [piece for piece in topic() if (piece.file, piece.position) != ("bin.000001", 35)]
    assert compared(folder, pieces).difference == (
        "the topic continues at bin.000002 position 4, the log at bin.000001 position 35"
    )


def test_a_log_that_ends_too_early(folder):
    (folder / "bin.000002").write_bytes(LOG["bin.000002"][:40])
    assert compared(folder, topic()).difference == (
        "the topic continues at bin.000002 position 40, where the log ends"
    )


def test_a_folder_without_the_file(folder):
    (folder / "bin.000001").unlink()
    with pytest.raises(UserError, match=r"has no log file bin\.000001"):
        compared(folder, topic())


def test_no_log(folder):
    (folder / "bin.000002").write_bytes(b"\xfdbin....")
    with pytest.raises(
        UserError, match=r"bin\.000002 is not a binary log, or an encrypted one: it begins with fd62696e"
    ):
        compared(folder, topic())


def test_log_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bin.000001").mkdir()
    with pytest.raises(UserError) as caught:
        list(folder_log(tmp_path)("bin.000001", 4))
    assert caught.value.message == f"{tmp_path}/bin.000001 cannot be read: Is a directory"
    assert caught.value.exit_code is ExitCode.SOURCE
    (tmp_path / "bin.000002").touch()
    with pytest.raises(UserError) as caught:
        list(folder_log(tmp_path)("bin.000002", 4))
    assert caught.value.message == (
        f"{tmp_path}/bin.000002 is not a binary log, or an encrypted one: it begins with nothing"
    )


def test_a_snapshot_of_a_server_without_a_log() -> None:
    silent = SimpleNamespace(flavour=Flavour.MARIADB, address=MysqlAddress("db"), query=lambda *_, **__: [])
    with pytest.raises(
        RefusedError, match=r"^db:3306: the binary log is off; start the server with log_bin$"
    ):
        take_snapshot(cast("MysqlConnection", silent), idle=True)
