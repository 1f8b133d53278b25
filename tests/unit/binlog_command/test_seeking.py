"""What lies before the place to begin at is not decoded, and what follows is the same."""

import gzip
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millrace.binlog.file import MAGIC
from millrace.binlog.types import EventType
from millrace.binlog_command.criteria import Criteria, FilePosition
from millrace.binlog_command.filters import Filter
from millrace.binlog_command.inputs import FileInput
from millrace.binlog_command.records import LogDecoder, LogRecord, RawEvent
from millrace.binlog_command.seeking import Seeker
from millrace.cli.binlog import binlog

LOGS = Path(__file__).parent / "logs"
FILES = [str(LOGS / name) for name in ("mysql.000001", "mariadb.000001", "mariadb-10.1.000001")]


def raw_events(names: Sequence[str], criteria: Criteria | None = None) -> list[RawEvent]:
    source = FileInput(list(names), seeker=None if criteria is None else Seeker(criteria))
    return [event for log in source.logs() for batch in log for event in batch]


def shown(names: Sequence[str], criteria: Criteria, *, seeks: bool, context: bool) -> list[tuple[Any, ...]]:
    """Yield what is known of the records that pass the filter."""
    source = FileInput(list(names), seeker=Seeker(criteria) if seeks else None)
    chosen = Filter(criteria, context=context, is_last=lambda path: path == names[-1])
    decoder = LogDecoder()

    def records() -> Any:
        for log in source.logs():
            yield from decoder.records(log)

    return [known(record) for record in chosen.apply(records())] + [chosen.missed, *chosen.unmatched()]


def known(record: LogRecord) -> tuple[Any, ...]:
    return (*record[:5], str(record.event), record.gtid, record.transaction)


def places(names: Sequence[str]) -> list[FilePosition]:
    return [
        FilePosition(position, file)
        for event in raw_events(names)
        for position in (event.position, event.position + 1)
        for file in (None, event.file)
    ]


@pytest.mark.parametrize("names", [*([name] for name in FILES), FILES], ids=len)
@pytest.mark.parametrize("context", [True, False])
def test_the_same_is_shown_from_every_place(names: list[str], context: bool) -> None:
    for start in [*places(names)[::7], FilePosition(10**9), FilePosition(4, "other")]:
        for stop in (None, FilePosition(2000)):
            criteria = Criteria(start=start, stop=stop)
            with_seeking = shown(names, criteria, seeks=True, context=context)
            assert with_seeking == shown(names, criteria, seeks=False, context=context), (start, stop)


@pytest.mark.parametrize("names", [*([name] for name in FILES), FILES], ids=len)
def test_the_same_is_shown_from_every_time(names: list[str]) -> None:
    times = sorted({int.from_bytes(event.data[:4], "little") for event in raw_events(names)})
    for time in [*times, times[-1] + 1]:
        for more in ({}, {"stop_time": times[len(times) // 2]}, {"start": FilePosition(1000)}):
            criteria = Criteria(start_time=time, **more)
            with_seeking = shown(names, criteria, seeks=True, context=True)
            assert with_seeking == shown(names, criteria, seeks=False, context=True), criteria


@pytest.mark.parametrize("name", FILES)
def test_of_what_lies_before_only_the_transaction_is_read(name: str) -> None:
    every = raw_events([name])
    last = every[-1].position
    read = [event.position for event in raw_events([name], Criteria(start=FilePosition(last)))]
    assert (read[0], read[-1]) == (len(MAGIC), last)
    assert len(read) < len(every) // 2
    assert raw_events([name], Criteria()) == every


def test_a_compressed_file_is_read_whole(tmp_path: Path) -> None:
    packed = tmp_path / "mysql.000001.gz"
    packed.write_bytes(gzip.compress(Path(FILES[0]).read_bytes()))
    assert len(raw_events([str(packed)], Criteria(start=FilePosition(10**9)))) == len(raw_events(FILES[:1]))


@pytest.mark.parametrize("damage", ["cut", "size", "joined", "format"])
def test_what_an_error_would_tell_is_not_skipped(tmp_path: Path, damage: str) -> None:
    name = str(tmp_path / "mysql.000001")
    shutil.copy(FILES[0], name)
    data = Path(name).read_bytes()
    middle = raw_events([name])[30].position
    head = data[len(MAGIC) : raw_events([name])[1].position]
    Path(name).write_bytes(
        {
            "cut": data[: middle + 10],
            "size": data[: middle + 9] + bytes(4) + data[middle + 13 :],
            "joined": data[:middle] + MAGIC + head + data[middle:],
            "format": data[:middle] + head + data[middle:],
        }[damage]
    )
    assert head[4] == EventType.FORMAT_DESCRIPTION_EVENT
    for start in places(FILES[:1])[::3]:
        criteria = Criteria(start=start)
        with_seeking = shown([name], criteria, seeks=True, context=True)
        assert with_seeking == shown([name], criteria, seeks=False, context=True), start


@pytest.mark.parametrize("packed", [False, True])
def test_the_head_is_where_mysqlbinlog_stops_to_look_for_it(packed: bool, tmp_path: Path) -> None:
    """What mysqlbinlog 9.7.4 prints in front of the format description, for each --start-position."""
    name = FILES[0]
    events = raw_events([name])
    second, third, fourth = (event.position for event in events[1:4])
    assert events[1].data[4] == EventType.PREVIOUS_GTIDS_LOG_EVENT
    if packed:
        name = str(tmp_path / "mysql.000001.gz")
        with gzip.open(name, "wb") as file:
            file.write(Path(FILES[0]).read_bytes())
    for start, expected in (
        (4, 4),
        (second, 4),
        (second + 1, second),
        (third, second),
        (third + 1, third),
        (fourth, third),
        (events[9].position, third),
    ):
        text = CliRunner().invoke(binlog, ["-j", str(start), name, FILES[0]]).stdout
        heads = re.findall(r"^# at (\d+)\n#.*\tStart: ", text, re.MULTILINE)
        assert heads == [str(expected), "4"]
