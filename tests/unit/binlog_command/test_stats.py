"""``--stats``: the figures of a log, as a report and as JSON."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millrace.binlog_command.stats import StatsOutput, _Largest, _Transaction
from millrace.cli import main

LOGS = Path(__file__).parent / "logs"
MYSQL = str(LOGS / "mysql.000001")
MARIADB = str(LOGS / "mariadb.000001")


def stats(*arguments: str) -> dict[str, Any]:
    outcome = CliRunner().invoke(main, ["binlog", "--stats", "--json", *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.stderr
    (line,) = outcome.stdout.splitlines()
    return json.loads(line)


def test_totals_of_logs_and_types() -> None:
    found = stats(MYSQL, MARIADB)
    assert (found["events"], found["rows"], found["transactions"]) == (117, 18, 28)
    assert found["bytes"] == sum(Path(path).stat().st_size - 4 for path in (MYSQL, MARIADB))
    assert [(log["file"], log["server_version"], log["events"]) for log in found["logs"]] == [
        (MYSQL, "8.0.15", 58),
        (MARIADB, "11.4.5-MariaDB-log", 59),
    ]
    assert all(log["first_timestamp"] <= log["last_timestamp"] for log in found["logs"])
    for figure in ("events", "bytes", "rows"):
        assert sum(one[figure] for one in found["types"]) == found[figure]
    assert {one["type"]: one["rows"] for one in found["types"]}["WRITE_ROWS_EVENT"] == 6


def test_tables_and_operations() -> None:
    found = stats(MARIADB)
    tables = {f"{one['database']}.{one['table']}": one for one in found["tables"]}
    rows = {name: (one["rows_write"], one["rows_update"], one["rows_delete"]) for name, one in tables.items()}
    assert rows == {"shop.items": (3, 1, 0), "shop.orders": (1, 1, 1), "archive.orders": (2, 0, 0)}
    operations = {one["operation"]: (one["events"], one["rows"]) for one in found["operations"]}
    assert operations["write"] == (5, 6)
    assert operations["delete"] == (1, 1)
    assert operations["statement CREATE"] == (5, 0)
    assert operations["statement INSERT"] == (1, 0)
    assert "statement BEGIN" not in operations


def test_extreme_transactions() -> None:
    largest = stats(MARIADB)["largest_transactions"]
    assert largest["bytes"][0] == {
        "transaction": "0-12-6",
        "file": "mariadb.000001",
        "position": 1279,
        "bytes": 646,
        "rows": 3,
        "events": 8,
        "seconds": 0,
    }
    assert [one["rows"] for one in largest["rows"]] == [3, 2, 1, 1, 1]
    assert largest["seconds"] == [], "none took a second"


def test_of_equal_transactions_the_first_are_kept() -> None:
    largest = _Largest(lambda one: one.bytes)
    for number, size in enumerate((1, 7, 7, 0, 7, 9, 7, 7, 7)):
        largest.offer(_Transaction(str(number), "f", number, bytes=size))
    assert [one.id for one in largest.found()] == ["5", "1", "2", "4", "6"]


def test_filters_choose_what_is_counted() -> None:
    found = stats("--table", "shop.items", "--type", "WRITE_ROWS", MYSQL)
    assert (found["events"], found["rows"]) == (2, 3)


def test_the_report_names_what_the_json_has() -> None:
    outcome = CliRunner().invoke(main, ["binlog", "--stats", MYSQL], catch_exceptions=False)
    lines = outcome.stdout.splitlines()
    assert lines[0] == "58 events, 9 rows, 4731 bytes, 14 transactions"
    (table,) = (line for line in lines if line.startswith("shop.items"))
    assert table.split() == ["shop.items", "3", "1", "0", "3", "4", table.split()[-1]]
    assert any(line.startswith("largest transactions by rows") for line in lines)


def test_a_log_is_closed_where_its_output_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatsOutput, "write", lambda *_: 1 // 0)
    outcome = CliRunner().invoke(main, ["binlog", "--stats", MYSQL])
    assert outcome.exit_code == 70  # its exception keeps what was at work
    assert MYSQL not in map(os.path.realpath, Path("/proc/self/fd").iterdir())


def test_rows_that_cannot_be_counted_are_said(tmp_path: Path) -> None:
    damaged = tmp_path / "log.1"
    data = bytearray(Path(MYSQL).read_bytes())
    data[1600] ^= 1
    damaged.write_bytes(data)
    outcome = CliRunner().invoke(main, ["binlog", "--stats", "--force-read", str(damaged)])
    assert outcome.exit_code == 1
    assert outcome.stdout.splitlines()[0].endswith("14 transactions, 2 unreadable")
