"""Copies of a server's logs, from a server that says and sends what it likes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.binlog.events import QueryEvent, RotateEvent, StatusVariables
from millrace.binlog_command import raw_download
from millrace.binlog_command.raw_download import RawDownload
from millrace.mysql.connection import MysqlAddress
from millrace.mysql.errors import RefusedError, SourceError
from millrace.mysql.identity import LogHead
from millrace.mysql.packets import EventPiece
from millrace.mysql.server_log import PlacedPiece, ServerAddress
from millrace.mysql.status import LogFile
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

from .made_logs import MadeLog

FIRST, SECOND = "bin.000001", "bin.000002"
PRECIOUS = b"what nobody may touch"


def _log(name: str, text: str, following: str | None) -> MadeLog:
    log = MadeLog(name=name, created=len(text))
    log.query(text).query(text * 2000)
    if following is not None:
        log.add(RotateEvent(4, following))
    return log


class FakeServer:
    """Stands in for ServerLog: it lists logs, and sends events and where they are, in pieces."""

    def __init__(self, *logs: MadeLog, listed: list[str] | None = None, piece_size: int = 1000) -> None:
        self.logs = {log.name: log for log in logs}
        self.listed = list(self.logs) if listed is None else listed
        self.sent: list[tuple[str, int]] = []
        self.replica = None
        self._piece_size = piece_size

    def binary_logs(self) -> list[LogFile]:
        return [LogFile(name, 1000) for name in self.listed]

    def pieces(self, file: str, position: int) -> Iterator[PlacedPiece]:
        names = list(self.logs)
        if position not in (at for at, _ in self.logs[file].events):
            raise RefusedError("Client requested master to start replication from position > file size")
        for name in names[names.index(file) :]:
            for at, data in self.logs[name].events:
                if name == file and at < position:
                    continue
                self.sent.append((name, at))
                for offset in range(0, len(data), self._piece_size):
                    part = data[offset : offset + self._piece_size]
                    last = offset + len(part) == len(data)
                    yield PlacedPiece(name, at, EventPiece(part, not offset, last, len(data)))

    def content(self, name: str) -> bytes:
        return b"\xfebin" + b"".join(data for _, data in self.logs[name].events)


@pytest.fixture
def honest() -> FakeServer:
    return FakeServer(_log(FIRST, "DO 1", SECOND), _log(SECOND, "DO 2", None))


def copy(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, prefix: str, log_file: str | None = None
) -> None:
    monkeypatch.setattr(raw_download, "ServerLog", lambda *_, **__: server)
    monkeypatch.setattr(
        raw_download,
        "read_head",
        lambda _address, _replica, name: LogHead(server.logs[name].events[0][1], None),
    )
    for _ in RawDownload(ServerAddress(MysqlAddress(), log_file), prefix).copy():
        pass


def everything(folder: Path) -> dict[str, bytes | str]:
    """What lies in a folder: files with their content, links with what they point to."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


BAD_NAMES = [
    "../precious.txt",
    "../precious.000001",
    "{here}/precious.000001",
    "sub/bin.000001",
    "..\\precious.000001",
    "..",
    ".",
    "",
    ".000001",
    "precious.txt",
    ".profile",
    "bin.000001\n",
    "bin\0.000001",
    "bin\x1b[2J.000001",
    "bin\u202e.000001",
    "b" * 300 + ".000001",
]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("named", ["by ROTATE", "in the list"])
def test_the_name_of_a_log_is_no_path(
    name: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name.replace("{here}", str(tmp_path))
    target = tmp_path / "a" / "b"
    target.mkdir(parents=True)
    for known in ("precious.txt", "precious.000001"):
        (target.parent / known).write_bytes(PRECIOUS)
    honest_part = _log(FIRST, "DO 1", name)
    evil = MadeLog(name=name)
    server = FakeServer(honest_part, evil, listed=[FIRST]) if named == "by ROTATE" else FakeServer(evil)
    before = everything(tmp_path)
    with pytest.raises(UserError) as error:
        copy(server, monkeypatch, f"{target}/")
    assert error.value.exit_code == ExitCode.SOURCE
    assert "a log's name" in error.value.message
    after = everything(tmp_path)
    after.pop(f"a/b/{FIRST}", None)
    assert after == before


def test_a_copy_is_the_servers_file(
    honest: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(honest, monkeypatch, f"{tmp_path}/new/")
    assert everything(tmp_path / "new") == {name: honest.content(name) for name in (FIRST, SECOND)}


def test_a_copy_goes_on_wherever_it_was_cut(
    honest: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = honest.content(SECOND)
    second = honest.logs[SECOND].events
    cuts = {0, 1, 4, 5, 23, *(at + more for at, _ in second for more in (-1, 0, 1, 30)), len(whole)}
    for cut in cuts:
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / FIRST).write_bytes(honest.content(FIRST))
        (folder / SECOND).write_bytes(whole[:cut])
        honest.sent.clear()
        copy(honest, monkeypatch, f"{folder}/")
        assert (folder / SECOND).read_bytes() == whole, cut
        assert {name for name, _ in honest.sent} == {SECOND}
        wholes = [at for at, data in second if at + len(data) <= cut]
        assert honest.sent[0] == (SECOND, max(wholes, default=4)), "it begins with the last whole event"


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(PRECIOUS, id="no log"),
        pytest.param(b"\xfebin" + PRECIOUS, id="magic bytes alone"),
        pytest.param("another log", id="another log"),
        pytest.param("another tail", id="another last event"),
        pytest.param("zeros", id="zeros after the events"),
        pytest.param("more events", id="more events than the server has"),
        pytest.param("more", id="more than the server has"),
    ],
)
@pytest.mark.parametrize("which", [FIRST, SECOND])
def test_what_is_no_copy_of_ours_is_never_changed(
    there: bytes | str, which: str, honest: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = honest.content(which)
    if isinstance(there, bytes):
        content = there
    elif there == "another log":
        other = _log(which, "DO 3", None)
        content = b"\xfebin" + b"".join(data for _, data in other.events)
    elif there == "another tail":
        content = content[:-1] + bytes([content[-1] ^ 1])
    elif there == "zeros":
        content = content[:-20] + bytes(20)
    else:
        content += content[4:] if there == "more events" else content[4:40]
    (tmp_path / which).write_bytes(content)
    with pytest.raises((UserError, SourceError)) as error:
        copy(honest, monkeypatch, f"{tmp_path}/")
    if isinstance(error.value, UserError):
        assert error.value.exit_code == ExitCode.DATA
        assert str(tmp_path / which) in error.value.message
    assert (tmp_path / which).read_bytes() == content


@pytest.mark.parametrize("target", ["precious.txt", "nothing.txt", "folder"])
def test_links_are_not_followed(
    target: str, honest: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious.txt").write_bytes(honest.content(SECOND)[:200])
    (tmp_path / "folder").mkdir()
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / SECOND).symlink_to(tmp_path / target)
    before = everything(tmp_path)
    with pytest.raises(UserError, match="is a symbolic link, which is not followed") as error:
        copy(honest, monkeypatch, f"{copies}/")
    assert error.value.exit_code == ExitCode.SOURCE
    after = everything(tmp_path)
    after.pop(f"copies/{FIRST}")
    assert after == before


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_left_alone(
    kind: str, honest: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "folder":
        (tmp_path / FIRST).mkdir()
    else:
        os.mkfifo(tmp_path / FIRST)
    with pytest.raises(
        UserError, match=f"{FIRST} is not a file|{FIRST} cannot be written: Is a dir"
    ) as error:
        copy(honest, monkeypatch, f"{tmp_path}/", FIRST)
    assert error.value.exit_code == ExitCode.SOURCE


def test_a_server_that_leaves_bytes_out_makes_no_file_with_a_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _log(FIRST, "DO 1", None)
    log.position += 1 << 31
    log.add(QueryEvent(9, 0, 0, StatusVariables(), "shop", b"DO 2"))
    with pytest.raises(UserError, match=r"continues at .* where the copy ends at") as error:
        copy(FakeServer(log), monkeypatch, f"{tmp_path}/")
    assert error.value.exit_code == ExitCode.SOURCE
    assert (tmp_path / FIRST).stat().st_size < 20_000


def test_copies_are_not_for_everybody(
    honest: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(honest, monkeypatch, f"{tmp_path}/")
    assert (tmp_path / FIRST).stat().st_mode & 0o007 == 0
