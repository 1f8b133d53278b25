"""CONTRIBUTING.md adds types that no server has; here a copy of the code gets them, word for word."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import PROJECT

ROUND_TRIP = """
from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.binlog.event_codec import decode_event, seal
from millrace.binlog.events import BackupMarkEvent
from millrace.binlog.transaction import TransactionTracker
from tests.unit.binlog.cases import MARIADB_118, make_event, state_of

state = state_of(MARIADB_118)
for body, expected in (
    ("01 07000000 04000000 6d617269 0001000000000000", BackupMarkEvent(1, 7, "mari", 256)),
    ("02 08000000 00000000", BackupMarkEvent(2, 8, "")),
):
    data = make_event(173, bytes.fromhex(body))
    decoded = decode_event(data, state)
    assert decoded.event == expected
    assert seal(decoded, state) == data
    step = TransactionTracker().feed(decoded.header, decoded.event, "log", 4)
    assert step.transaction is None
    record = EventSerializer()(decoded, 0, "log", 4, 0, step)
    assert EventDeserializer()(record).decoded == decoded
"""

COLUMN = """
from millrace.binlog.columns import codec_of
from millrace.binlog.events import WriteRowsEvent
from millrace.binlog.row_images import RowImages
from millrace.binlog.table import ColumnDefinition, TableDefinition, resolve_columns
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.row_printer import RowPrinter
from millrace.binlog_command.spool import Spool
from millrace.snapshot.images import SelectedTable
from tests.unit.rowmapper.harness import EventsTopic, World
from tests.unit.rowmapper.logs import Log

columns = ColumnDefinition(0, "id", "int", key_position=0), ColumnDefinition(1, "term", "interval")
selected = SelectedTable(TableDefinition("shop", "loans", columns), mariadb=True)
rows = selected.image([b"1", b"-14"]) + selected.image([b"2", b"24"]) + selected.image([b"3", None])
table = resolve_columns(selected.table_map, selected.definition, server_version=selected.server_version)
images = RowImages(table.columns, None, selected.present)
assert [after for _, after in images.each(rows)] == [(1, -14), (2, 24), (3, None)]
assert images.encode(images.each(rows)) == rows

event = WriteRowsEvent(1, 1, b"", 2, b"", selected.present, rows)
text = Spool()
RowPrinter(selected.table_map, event, 2, "shop", Generation.MARIADB_10_11).write(rows, text)
assert b"@2=-14 /* INTERVAL meta=0 nullable=1 is_null=0 */" in b"".join(text.take())
assert codec_of(table.columns[1]).to_json(-14) == -14

topic = EventsTopic()
Log(topic).begin().event(selected.table_map).event(event).commit()
world = World(topic, filter="shop.loans: term < 0 OR term IS NULL")
world.run()
terms = [record["after"]["term"] for _, record in world.read("t.shop.loans")]
assert terms == [-14, None], terms
"""


def run(copy: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code with the types of CONTRIBUTING.md."""
    copy = tmp_path_factory.mktemp("copy")
    for part in ("millrace", "schemas", "services", "tests/unit/binlog", "tests/unit/rowmapper", "tools"):
        shutil.copytree(PROJECT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("docs/columns.py", "tests/stages.py"):
        (copy / file).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / file, copy / file)
    page = (PROJECT / "CONTRIBUTING.md").read_text("utf-8")
    event, column_code, column = re.findall(r"(?s)```python\n(.*?)```", page)
    binlog = copy / "millrace" / "binlog"
    insert(binlog / "events" / "mariadb.py", "__all__ = [", '\n    "BackupMarkEvent",')
    insert(binlog / "columns" / "types.py", "    VARCHAR_COMPRESSED = 141\n", column_code)
    for family, declaration in (("events/mariadb.py", event), ("columns/numbers.py", column)):
        with (binlog / family).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{declaration}")
    run(copy, "tools/generate_event_types.py")
    return copy


def insert(file: Path, after: str, text: str) -> None:
    before, rest = file.read_text("utf-8").split(after)
    file.write_text(f"{before}{after}{text}{rest}", "utf-8")


@pytest.mark.parametrize("kernel", ["on", "off"])
def test_it_is_read_and_written(copy: Path, kernel: str) -> None:
    run(copy, "-c", ROUND_TRIP, MILLRACE_KERNEL=kernel)


def test_the_schema_has_it(copy: Path) -> None:
    written = run(
        copy,
        "-c",
        "import json; from millrace.avro.events import binlog_event_schema as s; print(json.dumps(s()))",
    )
    schema = json.loads(written)
    branches = next(field["type"] for field in schema["fields"] if field["name"] == "event")
    added = next(branch for branch in branches if branch["name"] == "BackupMarkEvent")
    assert [field["name"] for field in added["fields"]] == ["flags", "backup_id", "tool", "position"]
    assert added["fields"][3]["type"] == ["null", "long"]


@pytest.mark.parametrize("kernel", ["on", "off"])
def test_columns_of_it_are_read_and_written(copy: Path, kernel: str) -> None:
    run(copy, "-c", COLUMN, MILLRACE_KERNEL=kernel)


def test_the_documentation_has_columns_of_it(copy: Path) -> None:
    found = run(
        copy,
        "-c",
        "import columns; print(columns.columns_text(), columns.types_text())",
        PYTHONPATH=f"{copy}:{copy / 'docs'}",
    )
    assert "| INTERVAL 142 | `Interval`: INTERVAL of MariaDB: an int, months;" in found
    assert "| INTERVAL | int | int |" in found
