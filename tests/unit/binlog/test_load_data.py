"""LOAD DATA: statement and file found by file id, in the forms of all versions."""

import pytest

from millrace.binlog.errors import InvalidValueError, MissingStateError
from millrace.binlog.events import (
    AppendBlockEvent,
    BeginLoadQueryEvent,
    CreateFileEvent,
    DeleteFileEvent,
    ExecLoadEvent,
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    LoadEvent,
    NewLoadEvent,
    StatusVariables,
    XidEvent,
)
from millrace.binlog.load_data import LoadData, LoadDataAssembler
from tests.unit.binlog.cases import CASES

CREATE = next(case.event for case in CASES if isinstance(case.event, CreateFileEvent))


def execute(file_id: int) -> ExecuteLoadQueryEvent:
    text = b"LOAD DATA INFILE 'a.txt' INTO TABLE t"
    return ExecuteLoadQueryEvent(1, 0, 0, StatusVariables(), "d", file_id, 9, 29, 0, text)


def test_since_5_0_3() -> None:
    """Two files whose blocks come in turns."""
    assembler = LoadDataAssembler()
    for event in (
        BeginLoadQueryEvent(1, b"a"),
        XidEvent(1),
        BeginLoadQueryEvent(2, b"x"),
        AppendBlockEvent(1, b"b"),
        AppendBlockEvent(2, b"y"),
        AppendBlockEvent(1, b"c"),
    ):
        assert assembler.feed(event) is None
    assert (assembler.open_files, assembler.held_bytes) == ((1, 2), 5)
    assert assembler.feed(execute(2)) == LoadData(execute(2), b"xy")
    assert assembler.feed(execute(1)) == LoadData(execute(1), b"abc")
    assert (assembler.open_files, assembler.held_bytes) == ((), 0)


def test_before_5_0_3() -> None:
    assembler = LoadDataAssembler()
    assembler.feed(CREATE)
    assembler.feed(AppendBlockEvent(CREATE.file_id, b"13\n"))
    load = assembler.feed(ExecLoadEvent(CREATE.file_id))
    assert load == LoadData(CREATE, CREATE.block_data + b"13\n")


@pytest.mark.parametrize("kind", [LoadEvent, NewLoadEvent])
def test_statements_without_their_file(kind: type[LoadEvent | NewLoadEvent]) -> None:
    event = next(case.event for case in CASES if isinstance(case.event, kind))
    assert LoadDataAssembler().feed(event) == LoadData(event, None)


def test_a_load_that_failed() -> None:
    assembler = LoadDataAssembler()
    assembler.feed(BeginLoadQueryEvent(1, b"abc"))
    assert assembler.feed(DeleteFileEvent(1)) is None
    assert assembler.held_bytes == 0
    assert assembler.feed(DeleteFileEvent(1)) is None


def test_an_id_is_used_again() -> None:
    assembler = LoadDataAssembler()
    assembler.feed(BeginLoadQueryEvent(1, b"old"))
    assembler.feed(BeginLoadQueryEvent(1, b"new"))
    assert assembler.feed(execute(1)) == LoadData(execute(1), b"new")


def test_a_restart_of_the_server_ends_all_loads() -> None:
    assembler = LoadDataAssembler()
    assembler.feed(BeginLoadQueryEvent(1, b"abc"))
    assembler.feed(FormatDescriptionEvent(4, "5.7.22-log", 0, 19, b"", 1))
    assert assembler.open_files == (1,)
    assembler.feed(FormatDescriptionEvent(4, "5.7.22-log", 1700000000, 19, b"", 1))
    assert (assembler.open_files, assembler.held_bytes) == ((), 0)


def test_files_that_were_begun_before() -> None:
    for event in (AppendBlockEvent(1, b""), execute(1), ExecLoadEvent(1)):
        with pytest.raises(MissingStateError, match="file 1 to load was begun before"):
            LoadDataAssembler().feed(event)
    assembler = LoadDataAssembler()
    assembler.feed(BeginLoadQueryEvent(1, b""))
    with pytest.raises(InvalidValueError, match="EXEC_LOAD names file 1"):
        assembler.feed(ExecLoadEvent(1))


def test_what_is_held_is_bounded() -> None:
    assembler = LoadDataAssembler(max_bytes=4)
    assembler.feed(BeginLoadQueryEvent(1, b"abc"))
    with pytest.raises(InvalidValueError, match="files to load, 1 among them, take over 4 bytes"):
        assembler.feed(AppendBlockEvent(1, b"de"))
    assert (assembler.open_files, assembler.held_bytes) == ((), 0)
