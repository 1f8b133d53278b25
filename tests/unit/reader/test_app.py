"""The loop of the reader, on a Kafka in memory."""

from pathlib import Path

import pytest

from millrace.mysql.errors import LogMismatchError, PurgedError
from millrace.mysql.packets import EventPiece
from millrace.reader.files import FileSource
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from tests.unit.test_faults import TOPICS, World, insert, write_log


def test_a_trickle_that_never_pauses_is_committed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = 5
    write_log(tmp_path, 1, [insert] * transactions)
    world = World(tmp_path)
    world.commit_every = 1000
    read, coming = FileSource.read, list[EventPiece]()

    def read_one(source: FileSource, timeout_s: float) -> list[EventPiece]:
        if not coming:
            coming.extend(read(source, timeout_s))
        return [coming.pop(0)]

    monkeypatch.setattr(FileSource, "read", read_one)
    world.run("reader")
    states = [entry for entry in world.broker.records(TOPICS.state) if entry.key == b"reader"]
    assert len(states) > transactions


@pytest.mark.parametrize(("is_reset", "code"), [(True, ExitCode.DATA), (False, ExitCode.SOURCE)])
def test_where_the_next_file_is_missing_the_log_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_reset: bool, code: ExitCode
) -> None:
    """RESET MASTER removes files too: the server then says of a dump that the next file is missing."""
    write_log(tmp_path, 1, [insert])
    world = World(tmp_path)
    read, begun = FileSource.open, []

    def open_or_refuse(source: FileSource) -> None:
        begun.append(source)
        if is_reset and len(begun) > 1:
            raise LogMismatchError("this is not the log that was read so far")
        read(source)

    def purged(_source: FileSource) -> bool:
        raise PurgedError("the next log file is missing on the server, though its index names it")

    monkeypatch.setattr(FileSource, "open", open_or_refuse)
    monkeypatch.setattr(FileSource, "_next_file", purged)
    with pytest.raises(UserError) as caught:
        world.run("reader")
    assert caught.value.exit_code is code
    assert len(begun) == 2
