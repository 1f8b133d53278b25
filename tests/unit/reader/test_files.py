"""Files as a source: their order, their ends, what grows, what is none."""

import gzip
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from prometheus_client import CollectorRegistry

from millrace.contract import ABANDONED, GAP, HEADER_MARKER
from millrace.mysql.errors import GapError, LinkLostError, LogMismatchError, PurgedError, RefusedError
from millrace.reader.files import EndOfFiles, FileSource
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.settings import ReaderSettings
from millrace.runtime.errors import StopRequestedError
from millrace.runtime.settings import load_settings

from .logs import GTID_PREFIX, SID, Log, Recorder, Writer, make

if TYPE_CHECKING:
    from millrace.mysql.packets import EventPiece

BLOCK = 1 << 20

MAGIC = b"\xfebin"


def source(
    writer: Writer,
    files: str,
    start: str = "earliest",
    *,
    follow: bool = False,
    on_gap: str = "stop",
    beat: Callable[[], None] = lambda: None,
) -> FileSource:
    settings = load_settings(
        ReaderSettings,
        source="s",
        kafka={"bootstrap_servers": "nowhere"},
        files=files,
        follow=follow,
        on_gap=on_gap,
        start=start,
    )
    return FileSource(settings, writer.stage, ReaderMetrics(CollectorRegistry()), beat)


def log_file(folder: Path, name: str, *sizes: int) -> Log:
    log = Log(name)
    for number, size in enumerate(sizes):
        log.transaction(number + 1, size)
    (folder / name).write_bytes(content(log))
    return log


def content(log: Log) -> bytes:
    return MAGIC + b"".join(log.events)


def read(files: FileSource, writer: Writer) -> None:
    """Read until nothing more comes."""
    files.open()
    try:
        idle = 0
        while idle < 3:
            pieces = files.read(0)
            idle = 0 if pieces else idle + 1
            writer.write(pieces)
    except EndOfFiles:
        pass
    finally:
        files.close()
        writer.commit()


def carried(files: str, start: str = "earliest") -> Recorder:
    kafka = Recorder()
    writer = make(kafka)
    read(source(writer, files, start), writer)
    return kafka


def refusal(files: str, start: str = "earliest") -> str:
    with pytest.raises(RefusedError) as caught:
        source(make(Recorder()), files, start).open()
    return str(caught.value)


def written(kafka: Recorder) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for key, value, *_ in kafka.committed:
        name = key.split(b":")[2].decode()
        found[name] = found.get(name, MAGIC) + value
    return found


def test_files_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ["log.999998", "log.999999", "log.1000000"]
    logs = [log_file(tmp_path, name, 10, 4000) for name in names]
    kafka = carried(str(tmp_path / "log.*"))
    assert list(written(kafka)) == names
    assert written(kafka) == {log.name: content(log) for log in logs}


def test_an_event_larger_than_a_block(tmp_path: Path) -> None:
    log = log_file(tmp_path, "log.1", 10, 3_000_000, 1 << 20, (1 << 20) - 23, 5)
    assert written(carried(str(tmp_path / "log.1"))) == {"log.1": content(log)}


@pytest.mark.parametrize("left", [18, 19, 30, 4095, 4096])
def test_the_first_piece_of_a_large_event_tells_of_it(tmp_path: Path, left: int) -> None:
    """A statement of its own, larger than a block, of which the last bytes of one are the beginning."""
    log = Log("log.1")
    log.add(35, struct.pack("<Q", 0))
    log.add(33, b"\0" + SID + struct.pack("<Q", 1) + bytes(17))
    log.add(30, bytes(BLOCK - (log.end - 4) - left - 23))
    log.add(2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0INSERT" + bytes(BLOCK + 5000))
    (tmp_path / "log.1").write_bytes(content(log))
    kafka = Recorder()
    writer = make(kafka)
    read(source(writer, str(tmp_path / "log.1")), writer)
    assert written(kafka) == {"log.1": content(log)}
    state = writer.state
    assert state is not None
    assert (state.open_gtid, state.gtid_set) == (None, f"{GTID_PREFIX}:1")


def test_an_index_names_the_files(tmp_path: Path) -> None:
    logs = [log_file(tmp_path, name, 10) for name in ("b.1", "a.1")]
    (tmp_path / "x.index").write_text(f"./b.1\n{tmp_path}/a.1\n\n")
    kafka = carried(str(tmp_path / "x.index"))
    assert list(written(kafka)) == [log.name for log in logs]


def test_growing_files_byte_by_byte(tmp_path: Path) -> None:
    whole = content(log_file(tmp_path, "log.1", 10, 30))
    (tmp_path / "log.1").write_bytes(whole[:130])
    kafka = Recorder()
    writer = make(kafka)
    files = source(writer, str(tmp_path / "log.*"), follow=True)
    files.open()
    for at in range(130, len(whole)):
        writer.write(files.read(0))
        with (tmp_path / "log.1").open("ab") as file:
            file.write(whole[at : at + 1])
    second = content(log_file(tmp_path, "log.2", 10))
    for _ in range(6):
        writer.write(files.read(0))
    files.close()
    writer.commit()
    assert written(kafka) == {"log.1": whole, "log.2": second}


def read_some(kafka: Recorder, files: str, step: int) -> None:
    """Write as many of the first pieces that come."""
    writer = make(kafka)
    found = source(writer, files)
    found.open()
    pieces: list[EventPiece] = []
    while not pieces:
        pieces = found.read(0)
    found.close()
    writer.write(pieces[:step])
    writer.commit()


def test_going_on_in_the_middle_of_a_file(tmp_path: Path) -> None:
    log = log_file(tmp_path, "log.1", 10, 5000, 10)
    kafka = Recorder()
    for step in range(1, 6):
        read_some(kafka, str(tmp_path / "log.1"), step)
    writer = make(kafka)
    read(source(writer, str(tmp_path / "log.1")), writer)
    assert written(kafka) == {"log.1": content(log)}


def test_starts(tmp_path: Path) -> None:
    log = log_file(tmp_path, "log.1", 10, 20)
    position = 4 + sum(map(len, log.events[:5]))
    kafka = carried(str(tmp_path / "log.1"), f"log.1:{position}")
    assert [int(key.split(b":")[3]) for key, *_ in kafka.committed][:2] == [4, position]
    kafka = carried(str(tmp_path / "log.1"), "latest")
    assert [int(key.split(b":")[3]) for key, *_ in kafka.committed] == [4]


def test_a_file_that_ends_in_the_middle_of_an_event(tmp_path: Path) -> None:
    log = log_file(tmp_path, "log.1", 10)
    (tmp_path / "log.1").write_bytes(content(log)[:-5])
    second = log_file(tmp_path, "log.2", 10)
    assert written(carried(str(tmp_path / "log.*"))) == {
        "log.1": MAGIC + b"".join(log.events[:-1]),
        "log.2": content(second),
    }


@pytest.mark.parametrize("sizes", [(10,), (10, 3_000_000), (10, 3_000_000, 5)])
def test_an_impossible_length(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    log = log_file(tmp_path, "log.1", *sizes)
    (tmp_path / "log.1").write_bytes(content(log) + bytes(40))
    writer = make(Recorder())
    with pytest.raises(GapError, match=rf"log\.1 at {len(content(log))}: an event of 0 bytes cannot be"):
        read(source(writer, str(tmp_path / "log.1")), writer)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"\xfdbin" + bytes(600), "encrypted"),
        (b"\x1f\x8b\x08" + bytes(600), "cannot be unpacked"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 600, "cannot be unpacked"),
        (gzip.compress(b"hello", mtime=0), "is not a binary log that can be read: it starts with 68656c6c"),
        (b"", "nothing"),
        (
            MAGIC + bytes(4) + b"\x01" + bytes(4) + b"\x45\0\0\0",
            "was written by MySQL 3.23, whose format is not read",
        ),
    ],
)
def test_what_is_no_log(tmp_path: Path, start: bytes, words: str) -> None:
    (tmp_path / "log.1").write_bytes(start)
    with pytest.raises(RefusedError, match=words):
        source(make(Recorder()), str(tmp_path / "log.1")).open()


def test_files_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    log_file(tmp_path, "log.1", 10)
    log_file(tmp_path / "a", "log.1", 10)
    with pytest.raises(RefusedError, match=r"several files are called log\.1"):
        source(make(Recorder()), f"{tmp_path}/log.1,{tmp_path}/a/log.1").open()


def test_the_file_to_go_on_in_is_gone(tmp_path: Path) -> None:
    log_file(tmp_path, "log.1", 10)
    kafka = carried(str(tmp_path / "log.*"))
    (tmp_path / "log.1").rename(tmp_path / "log.2")
    with pytest.raises(RefusedError, match=r"log\.1, where reading is to continue"):
        source(make(kafka), str(tmp_path / "log.*")).open()


@pytest.mark.parametrize("size", [10, 4000])
def test_another_file_of_the_same_name(tmp_path: Path, size: int) -> None:
    """After RESET MASTER, or of another server: an event may well begin where reading is to continue."""
    log_file(tmp_path, "log.1", 10, 20)
    kafka = carried(str(tmp_path / "log.1"))
    other = Log("log.1", timestamp=1_700_000_001)
    for number in (1, 2, 3):
        other.transaction(number, 10 * number, size)
    (tmp_path / "log.1").write_bytes(content(other))
    writer = make(kafka)
    with pytest.raises(LogMismatchError, match=r"log\.1 is not the log that was read so far up to log\.1:"):
        read(source(writer, str(tmp_path / "log.1")), writer)


def test_a_relay_log_has_two_heads(tmp_path: Path) -> None:
    """Its own, by which it is known, and that of the server's log."""
    log = Log("relay.1")
    log.add(35, struct.pack("<Q", 0))
    log.add(15, log.events[0][19:-4], timestamp=1_600_000_000)
    log.add(35, struct.pack("<Q16sQQQ", 1, SID, 1, 1, 5))
    log.transaction(5, 10)
    path = tmp_path / "relay.1"
    path.write_bytes(content(log))
    kafka = carried(str(path))
    log.transaction(6, 10)
    path.write_bytes(content(log))
    writer = make(kafka)
    read(source(writer, str(path)), writer)
    assert written(kafka) == {"relay.1": content(log)}


@pytest.mark.parametrize("follow", [False, True])
def test_a_file_in_between_is_missing(tmp_path: Path, follow: bool) -> None:
    """It was purged, or is not copied yet: what lies in it is not passed over in silence."""
    files = str(tmp_path / "log.*")
    logs = [log_file(tmp_path, f"log.{number}", 10 * number) for number in (1, 2, 3)]
    (tmp_path / "log.2").rename(tmp_path / "later")
    kafka = Recorder()
    writer = make(kafka)
    with pytest.raises(PurgedError, match=r"log\.2 is missing.* MILLRACE_ON_GAP=continue"):
        read(source(writer, files, follow=follow), writer)
    assert list(written(kafka)) == ["log.1"]
    (tmp_path / "later").rename(tmp_path / "log.2")
    writer = make(kafka)
    read(source(writer, files, follow=follow), writer)
    assert written(kafka) == {log.name: content(log) for log in logs}


def test_files_in_between_are_missing_and_a_gap_is_allowed(tmp_path: Path) -> None:
    """A transaction that had begun is among what is missing."""
    logs = [log_file(tmp_path, f"log.{number}", 10 * number) for number in (1, 4)]
    end = logs[0].add(33, b"\0" + SID + struct.pack("<Q", 2) + bytes(17)) + len(logs[0].events[-1])
    (tmp_path / "log.1").write_bytes(content(logs[0]))
    kafka = Recorder()
    writer = make(kafka)
    read(source(writer, str(tmp_path / "log.*"), on_gap="continue"), writer)
    cut, (key, value, _, headers) = (record for record in kafka.committed if HEADER_MARKER in record[3])
    assert (cut[0], cut[3]) == (b"0:0:log.1:%d" % end, {HEADER_MARKER: ABANDONED})
    assert (key, headers) == (b"0:1:log.4:0", {HEADER_MARKER: GAP})
    assert value.startswith(b"log.2 to log.3 are missing")
    found = [value for _, value, _, headers in kafka.committed if HEADER_MARKER not in headers]
    assert found == [event for log in logs for event in log.events]
    assert writer.state is not None
    assert (writer.state.epoch, writer.state.log_file) == (1, "log.4")


@pytest.mark.parametrize("longer", [True, False])
def test_a_followed_file_is_replaced(tmp_path: Path, longer: bool) -> None:
    """By a later copy, or by another one: it is opened again, which compares its head."""
    path = tmp_path / "log.1"
    log = log_file(tmp_path, "log.1", 10)
    if not longer:
        log.transaction(2, 4000)
        path.write_bytes(content(log))
    kafka = Recorder()
    writer = make(kafka)
    files = source(writer, str(path), follow=True)
    files.open()
    while pieces := files.read(0):
        writer.write(pieces)
    writer.commit()
    later = log_file(tmp_path, "later", 10, *([20] if longer else []))
    (tmp_path / "later").rename(path)
    with pytest.raises(LinkLostError, match=r"log\.1 was replaced"):
        files.read(0)
    files.close()
    if longer:
        read(files, writer)
        assert written(kafka) == {"log.1": content(later)}


def test_a_followed_file_is_removed(tmp_path: Path) -> None:
    """Once it was read: what follows is read as well."""
    logs = [log_file(tmp_path, "log.1", 10)]
    kafka = Recorder()
    writer = make(kafka)
    files = source(writer, str(tmp_path / "log.*"), follow=True)
    files.open()
    (tmp_path / "log.1").unlink()
    logs.append(log_file(tmp_path, "log.2", 20))
    for _ in range(6):
        writer.write(files.read(0))
    files.close()
    writer.commit()
    assert written(kafka) == {log.name: content(log) for log in logs}


def two_frames(data: bytes) -> bytes:
    half = len(data) // 2
    return zstandard.compress(data[:half]) + zstandard.compress(data[half:])


PACKERS = [(".gz", gzip.compress), (".zst", zstandard.compress), (".zstd", two_frames)]


@pytest.mark.parametrize(("ending", "pack"), PACKERS)
def test_packed_files(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    """A file that is packed between two runs is continued, by the name and the positions of its log."""
    first = log_file(tmp_path, "log.999999", 10, 3_000_000, 5)
    second = log_file(tmp_path, "log.1000000", 10, 5000, 10)
    plain = tmp_path / "log.999999"
    (tmp_path / f"log.999999{ending}").write_bytes(pack(plain.read_bytes()))
    plain.unlink()
    kafka = Recorder()
    for step in (1, 3, 7):
        read_some(kafka, str(tmp_path / "log.*"), step)
    plain = tmp_path / "log.1000000"
    (tmp_path / f"log.1000000{ending}").write_bytes(pack(plain.read_bytes()))
    plain.unlink()
    writer = make(kafka)
    read(source(writer, str(tmp_path / "log.*"), follow=True), writer)
    assert written(kafka) == {log.name: content(log) for log in (first, second)}


@pytest.mark.parametrize(("ending", "pack"), PACKERS[:1])
def test_a_packed_file_that_is_cut_short(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    log = log_file(tmp_path, "log.1", *([1000] * 100))
    (tmp_path / "log.1").rename(tmp_path / "plain")
    (tmp_path / f"log.1{ending}").write_bytes(pack(content(log))[:-20])
    kafka = Recorder()
    writer = make(kafka)
    with pytest.raises(GapError, match=r"log\.1\.gz cannot be unpacked after \d+ of the log in it"):
        read(source(writer, str(tmp_path / "log.*")), writer)
    assert content(log).startswith(written(kafka)["log.1"])


def test_a_log_beside_its_packed_copy(tmp_path: Path) -> None:
    log = log_file(tmp_path, "log.1", 10)
    (tmp_path / "log.1.gz").write_bytes(gzip.compress(content(log)))
    with pytest.raises(RefusedError, match=r"several files are called log\.1"):
        source(make(Recorder()), str(tmp_path / "log.*")).open()


def timed_log(folder: Path, name: str, begun: int, *times: int) -> Log:
    log = Log(name, timestamp=begun)
    for number, time in enumerate(times):
        log.timestamp = time
        log.transaction(number + 1, 10)
    (folder / name).write_bytes(content(log))
    return log


@pytest.mark.parametrize(
    ("start", "most"), [("time:1970-01-01T00:03:00Z", 1000), ("latest", 1000), ("log.1:80000", 1)]
)
def test_the_search_for_the_place_can_be_stopped(tmp_path: Path, start: str, most: int) -> None:
    timed_log(tmp_path, "log.1", 100, *[110] * 500)
    (tmp_path / "log.1.gz").write_bytes(gzip.compress((tmp_path / "log.1").read_bytes()))
    (tmp_path / "log.1").unlink()
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats > most:
            raise StopRequestedError

    kafka = Recorder()
    writer = make(kafka)
    with pytest.raises(StopRequestedError):
        read(source(writer, str(tmp_path / "log.1.gz"), start, beat=beat), writer)
    assert kafka.committed == []
    assert kafka.state is None


@pytest.mark.parametrize(
    ("start", "count", "name", "event"),
    [
        ("time:1970-01-01T00:02:00Z", 3, "relay.1", 1),
        ("time:1970-01-01T00:02:40Z", 3, "relay.1", 5),
        ("time:1970-01-01T00:03:20Z", 3, "relay.3", 3),
        ("time:1970-01-01T00:05:00Z", 3, "relay.3", 3),
        ("latest", 3, "relay.3", 3),
        ("latest", 2, "relay.1", 5),
    ],
)
def test_a_start_in_relay_logs_is_between_transactions(
    tmp_path: Path, start: str, count: int, name: str, event: int
) -> None:
    """The second transaction lies in three files, the third has not come whole."""
    logs = [Log(f"relay.{number}", timestamp=time) for number, time in ((1, 110), (2, 150), (3, 170))]
    first, second, third = logs
    first.timestamp = 120
    first.transaction(1, 10)
    first.timestamp = 150
    first.transaction(2, 10)
    del first.events[7:]
    second.add(30, bytes(10))
    third.add(30, bytes(10), timestamp=150)
    third.add(16, bytes(8), timestamp=180)
    third.timestamp = 200
    third.transaction(3, 10)
    del third.events[5:]
    for log in logs[:count]:
        (tmp_path / log.name).write_bytes(content(log))
    kafka = carried(str(tmp_path / "relay.*"), start)
    places = [(key.split(b":")[2].decode(), int(key.split(b":")[3])) for key, *_ in kafka.committed]
    log = next(log for log in logs if log.name == name)
    assert places[:2] == [(name, 4), (name, 4 + sum(map(len, log.events[:event])))]


@pytest.mark.parametrize(
    ("time", "name", "transaction"),
    [
        (50, "log.1", 0),
        (100, "log.1", 0),
        (130, "log.1", 2),
        (140, "log.2", 0),
        (170, "log.3", 0),
        (171, "log.3", 1),
        (999, "log.3", 2),
    ],
)
def test_start_at_a_time(tmp_path: Path, time: int, name: str, transaction: int) -> None:
    logs = [
        timed_log(tmp_path, "log.1", 100, 110, 120, 130),
        timed_log(tmp_path, "log.2", 140, 150, 160),
        timed_log(tmp_path, "log.3", 170, 170, 180),
    ]
    (tmp_path / "log.2.gz").write_bytes(gzip.compress((tmp_path / "log.2").read_bytes()))
    (tmp_path / "log.2").unlink()
    kafka = Recorder()
    writer = make(kafka)
    start = f"time:1970-01-01T00:{time // 60:02}:{time % 60:02}Z"
    read(source(writer, str(tmp_path / "log.*"), start), writer)
    log = next(log for log in logs if log.name == name)
    position = 4 + sum(map(len, log.events[: 1 + 4 * transaction]))
    places = [(key.split(b":")[2].decode(), int(key.split(b":")[3])) for key, *_ in kafka.committed]
    assert places[0] == (name, 4)
    assert places[1:2] == ([(name, position)] if position < log.end else [])


def test_no_file_of_that_name(tmp_path: Path) -> None:
    assert refusal(f"{tmp_path}/bin.*") == f"no file matches MILLRACE_FILES ({tmp_path}/bin.*)"


UNREADABLE = Path("/proc/self/mem")
"""A file that opens, and cannot be read at its beginning: nothing of ours is mapped there."""


@pytest.mark.parametrize("start", ["earliest", "latest", "time:2026-01-31T12:00:00Z"])
def test_files_that_cannot_be_read(tmp_path: Path, start: str) -> None:
    (tmp_path / "bin.index").mkdir()
    (tmp_path / "bin.000001").symlink_to(UNREADABLE)
    for name, reason in (
        ("bin.000001", "Input/output error"),
        ("bin.000002", "No such file or directory"),
        ("bin.index", "Is a directory"),
    ):
        files = source(make(Recorder()), f"{tmp_path}/{name}", start)
        with pytest.raises(RefusedError) as caught, closing(files):
            files.open()
        assert str(caught.value) == f"{tmp_path}/{name} cannot be read: {reason}"


def test_a_file_that_cannot_be_read_on(tmp_path: Path) -> None:
    log_file(tmp_path, "bin.000001", 10)
    writer = make(Recorder())
    files = source(writer, f"{tmp_path}/bin.000001")
    files.open()
    with UNREADABLE.open("rb", buffering=0) as broken:
        files._file = broken
        with pytest.raises(RefusedError) as caught:
            files.read(0)
    files.close()
    assert str(caught.value) == f"{tmp_path}/bin.000001 cannot be read: Input/output error"


def test_a_file_without_an_event_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "bin.000001").write_bytes(MAGIC)
    assert (
        refusal(f"{tmp_path}/bin.000001", "time:2026-01-31T12:00:00Z")
        == f"{tmp_path}/bin.000001 has no events"
    )


def test_a_file_that_ends_in_a_large_event(tmp_path: Path) -> None:
    log_file(tmp_path, "bin.000001", 3 * BLOCK)
    log_file(tmp_path, "bin.000002", 10)
    path = tmp_path / "bin.000001"
    path.write_bytes(path.read_bytes()[: 2 * BLOCK])
    writer = make(Recorder())
    with pytest.raises(GapError) as caught:
        read(source(writer, f"{tmp_path}/bin.*"), writer)
    assert str(caught.value).startswith(f"{path} ends in the middle of an event of 31")
    assert str(caught.value).endswith(" bytes")
