"""CONTRIBUTING.md adds an event type that no server has; here a copy of the code gets it, word for word."""

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
    """The code with the event type of CONTRIBUTING.md."""
    copy = tmp_path_factory.mktemp("copy")
    for part in ("millrace", "schemas", "tests/unit/binlog"):
        shutil.copytree(PROJECT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    page = (PROJECT / "CONTRIBUTING.md").read_text("utf-8")
    number, declaration = re.findall(r"(?s)```python\n(.*?)```", page)
    types, family = (copy / "millrace" / "binlog" / path for path in ("types.py", "events/mariadb.py"))
    codes, rest = types.read_text("utf-8").split("    PARTIAL_ROW_DATA_EVENT = 172\n")
    types.write_text(f"{codes}    PARTIAL_ROW_DATA_EVENT = 172\n{number}{rest}", "utf-8")
    source = family.read_text("utf-8").replace("__all__ = [", '__all__ = [\n    "BackupMarkEvent",')
    family.write_text(f"{source}\n\n{declaration}", "utf-8")
    return copy


@pytest.mark.parametrize("kernel", ["on", "off"])
def test_it_is_read_and_written(copy: Path, kernel: str) -> None:
    run(copy, "-c", ROUND_TRIP, MILLRACE_KERNEL=kernel)


def test_the_schema_has_it(copy: Path) -> None:
    run(copy, "-m", "millrace.avro.events")
    schema = json.loads((copy / "schemas" / "avro" / "BinlogEvent.avsc").read_text("utf-8"))
    branches = next(field["type"] for field in schema["fields"] if field["name"] == "event")
    added = next(branch for branch in branches if branch["name"] == "BackupMarkEvent")
    assert [field["name"] for field in added["fields"]] == ["flags", "backup_id", "tool", "position"]
    assert added["fields"][3]["type"] == ["null", "long"]
