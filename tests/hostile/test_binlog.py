"""``millrace binlog`` and logs of some kilobytes that unpack to a gigabyte, or hold millions of rows."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.unit.binlog_command.made_logs import MadeLog

from . import bombs
from .bombs import BLOB, MARIADB, MYSQL, TABLE, blob_row, file_of, hollow, query, rows, transaction
from .commands import Commands
from .processes import Ended

GIGABYTE: Final = 1 << 30
UNPACKED: Final = (16 << 20) - 200
"""What is still unpacked, whatever it is packed in."""

OF_ANY_SIZE: Final = ("text", "hexdump")
"""How rows that MariaDB packed are written without their values, whatever they unpack to."""

OLD: Final = "5.5.62"
"""A server that writes no checksums."""

MODES: Final = {
    "text": (),
    "rows": ("-vv",),
    "json": ("--json",),
    "statistics": ("--stats",),
    "flashback": ("--flashback", "--force-read"),
    "hexdump": ("--hexdump",),
}


def packed_log(log: MadeLog, *parts: bombs.Part) -> bytes:
    return bombs.zstd(file_of(log), *parts)


def bomb(name: str, size: int) -> bytes:
    """A log in which an event unpacks to so many bytes."""
    if name == "file.zst":
        return packed_log(MadeLog(OLD), *hollow(query(), size))
    if name == "rows.zst":
        lead, zeros = blob_row(size)
        return packed_log(MadeLog(OLD).add(BLOB), *hollow(rows(lead, BLOB), zeros))
    if name == "payload":
        return file_of(transaction(MadeLog(MYSQL), bombs.payload(*hollow(query(), size))))
    if name == "rows in a payload":
        lead, zeros = blob_row(size)
        inner = (*hollow(BLOB, 0), *hollow(rows(lead, BLOB), zeros))
        return file_of(transaction(MadeLog(MYSQL), bombs.payload(*inner)))
    if name == "statement":
        return file_of(transaction(MadeLog(MARIADB), bombs.compressed_query(size)))
    value = bombs.compressed_rows(*blob_row(size), table=BLOB)
    return file_of(transaction(MadeLog(MARIADB), BLOB, value))


BOMBS: Final = ("file.zst", "rows.zst", "payload", "rows in a payload", "statement", "rows")


def look_into(commands: Commands, path: Path, *options: str) -> Ended:
    return commands.run("binlog", *options, "--result-file", "/dev/null", str(path), settings={})


@pytest.mark.parametrize("name", BOMBS)
def test_what_unpacks_from_little(commands: Commands, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(bomb(name, GIGABYTE))
    assert path.stat().st_size < 1100 << 10
    of_rows = name == "rows"
    for mode, options in MODES.items():
        if of_rows and mode in OF_ANY_SIZE:
            continue
        ended = look_into(commands, path, *options)
        limit = "; up to 33" if of_rows else "; up to 16"
        ended.says(1, f"{path} at ", f"{GIGABYTE >> 20}"[:2], limit, "are read; --max-event-size")
    ended = commands.run("binlog", "--verify", str(path), settings={})
    ended.is_well()
    assert (ended.code, ended.errors) == (9 if of_rows else 1, "")
    assert f"{'are' if of_rows else 'are read'}; --max-event-size allows more" in ended.output


@pytest.mark.parametrize("mode", OF_ANY_SIZE)
def test_rows_that_are_written_as_they_are_unpacked(commands: Commands, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "bin.000001"
    path.write_bytes(bomb("rows", GIGABYTE >> 2))
    ended = look_into(commands, path, *MODES[mode])
    ended.is_well()
    assert ended.code == 0, ended


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("file.zst", "json"),
        ("file.zst", "hexdump"),
        ("rows in a payload", "rows"),
        ("rows in a payload", "json"),
        ("rows in a payload", "flashback"),
        ("statement", "json"),
        ("rows", "text"),
    ],
)
def test_what_is_unpacked(commands: Commands, tmp_path: Path, name: str, mode: str) -> None:
    path = tmp_path / name
    path.write_bytes(bomb(name, UNPACKED))
    ended = look_into(commands, path, *MODES[mode])
    ended.is_well()
    assert ended.code == 0, ended


@pytest.mark.parametrize("mode", [*MODES, "verify"])
def test_rows_without_bytes(commands: Commands, tmp_path: Path, mode: str) -> None:
    """Millions of rows of which all is NULL, a byte each: one is read, and the text goes out as it comes."""
    path = tmp_path / "bin.000001"
    path.write_bytes(file_of(transaction(MadeLog(MYSQL), TABLE, rows(b"\1" * (4 << 20)))))
    ended = look_into(commands, path, *MODES.get(mode, ("--verify",)))
    ended.is_well()
    assert ended.code == 0, ended


def test_rows_that_unpack_to_rows_without_bytes(commands: Commands, tmp_path: Path) -> None:
    path = tmp_path / "bin.000001"
    path.write_bytes(file_of(transaction(MadeLog(MARIADB), TABLE, bombs.compressed_rows(5 << 20))))
    ended = look_into(commands, path, "--json")
    ended.is_well()
    assert ended.code == 0, ended


def test_tables_that_are_described_at_length(commands: Commands, tmp_path: Path) -> None:
    """Megabytes of metadata for each: not all that is made of them is kept for their next statements."""
    path = tmp_path / "bin.000001.zst"
    parts: list[bombs.Part] = []
    for number in range(70):
        table = replace(TABLE, table_id=number)
        parts += [*hollow(table, 2 << 20), *hollow(rows(b"\1", table), 0)]
    path.write_bytes(packed_log(MadeLog(OLD), *parts))
    ended = look_into(commands, path, "--json")
    ended.is_well()
    assert ended.code == 0, ended


def test_settings_without_a_statement(commands: Commands, tmp_path: Path) -> None:
    """A thousand user variables of megabytes wait for no statement that they would be for."""
    variable = bombs.user_variable(4 << 20)
    path = tmp_path / "bin.000001.zst"
    path.write_bytes(packed_log(MadeLog("5.6.51"), *variable * 200))
    look_into(commands, path, "--no-verify-binlog-checksum").is_well()
