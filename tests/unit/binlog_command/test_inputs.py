"""Log files as input: names, compression, standard input, several in a row, growth."""

import gzip
import io
import json
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner, Result

from millrace.binlog.errors import TruncatedError
from millrace.binlog.file import MAGIC
from millrace.binlog_command.inputs import FileInput, find_files
from millrace.binlog_command.records import RawEvent
from millrace.binlog_command.rewrite import DatabaseRewrite
from millrace.binlog_command.topic import TopicInput
from millrace.cli import main
from millrace.log_files import unpacked
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

LOGS = Path(__file__).parent / "logs"
MYSQL = LOGS / "mysql.000001"
MARIADB = LOGS / "mariadb.000001"
ENCRYPTED = Path(__file__).parents[1] / "binlog" / "encrypted"


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["binlog", *arguments], env=environment, catch_exceptions=False)


def events(source: FileInput) -> Iterator[RawEvent]:
    for log in source.logs():
        for batch in log:
            yield from batch


def test_names_of_files_folders_and_indexes(tmp_path: Path) -> None:
    for name in ("log.1000000", "log.999999", "other.txt"):
        (tmp_path / name).touch()
    assert find_files("-") == ["-"]
    assert find_files("missing") == ["missing"]
    assert find_files(str(tmp_path)) == [str(tmp_path / "log.999999"), str(tmp_path / "log.1000000")]
    (tmp_path / "log.999999").rename(tmp_path / "log.999999.gz")
    assert find_files(str(tmp_path)) == [str(tmp_path / "log.999999.gz"), str(tmp_path / "log.1000000")]
    index = tmp_path / "log.index"
    index.write_text("./log.1000000\n")
    assert find_files(str(index)) == [str(tmp_path / "log.1000000")]
    assert find_files(str(tmp_path)) == [str(tmp_path / "log.1000000")]
    (tmp_path / "relay.index").touch()
    with pytest.raises(UserError, match=r"a folder with log.index, relay.index: name the files"):
        find_files(str(tmp_path))
    with pytest.raises(UserError, match="cannot be read"):
        find_files("nowhere.index")


def test_several_files_are_read_in_order() -> None:
    lines = [json.loads(line) for line in run("--json", str(MARIADB), str(MYSQL)).stdout.splitlines()]
    assert [line["file"] for line in lines] == ["mariadb.000001"] * 59 + ["mysql.000001"] * 58


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_files_are_unpacked(pack, tmp_path: Path) -> None:
    packed = tmp_path / "mysql.000001"
    packed.write_bytes(pack(MYSQL.read_bytes()))
    assert run("--json", str(packed)).stdout == run("--json", str(MYSQL)).stdout


def test_several_frames_are_one_file(tmp_path: Path) -> None:
    data = MYSQL.read_bytes()
    packed = tmp_path / "mysql.000001"
    packed.write_bytes(zstandard.compress(data[:1000]) + zstandard.compress(data[1000:]))
    assert run("--json", str(packed)).stdout == run("--json", str(MYSQL)).stdout


def test_a_compressed_file_cut_short_gives_what_there_is(tmp_path: Path) -> None:
    packed = tmp_path / "mysql.000001.gz"
    packed.write_bytes(gzip.compress(MYSQL.read_bytes())[:-20])
    outcome = run("--json", str(packed))
    assert outcome.exit_code == 1
    assert outcome.stdout.count("\n") > 20
    assert outcome.stderr.startswith(f"error: {packed} at ")


def gzip_blocks(data: bytes) -> bytes:
    pack = zlib.compressobj(wbits=31)
    return pack.compress(data) + pack.flush(zlib.Z_FULL_FLUSH)


def zstd_blocks(data: bytes) -> bytes:
    pack = zstandard.ZstdCompressor().compressobj()
    return pack.compress(data) + pack.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@pytest.mark.parametrize("pack", [gzip_blocks, zstd_blocks])
@pytest.mark.parametrize("copies", [1, 10, 100])
def test_events_before_damage_in_a_compressed_file_are_given(pack, copies, tmp_path: Path) -> None:
    data = MYSQL.read_bytes()
    whole = data + data[len(MAGIC) :] * (copies - 1)
    path = tmp_path / "log.000001"
    path.write_bytes(pack(whole) + b"\xff" * 100)  # a block of a type that there is not
    found: list[RawEvent] = []
    with pytest.raises(TruncatedError, match="the file cannot be unpacked further: "):
        found.extend(events(FileInput([str(path)])))
    given = b"".join(event.data for event in found)
    assert whole[len(MAGIC) :].startswith(given)
    assert len(whole) - len(given) < (4 << 10 if pack is gzip_blocks else 100)


def test_a_zstd_file_cut_anywhere() -> None:
    """Where a frame ends it may be whole; a frame of another kind is passed over."""
    texts = b"first" * 50, b"", b"second"
    frames = [
        zstandard.ZstdCompressor(write_checksum=index != 1).compress(t) for index, t in enumerate(texts)
    ]
    frames.insert(1, b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc")
    whole = b"".join(frames)
    ends = set(accumulate(map(len, frames)))
    for size in range(4, len(whole) + 1):
        read = unpacked(io.BufferedReader(io.BytesIO(whole[:size]))).read
        given = b""
        with nullcontext() if size in ends else pytest.raises(EOFError, match="before the end of its last"):
            while data := read(7):
                given += data
        assert b"".join(texts).startswith(given)
    assert given == b"".join(texts)


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed = tmp_path / "log.zst"
    packed.write_bytes(zstandard.compress(MYSQL.read_bytes()))
    with packed.open("rb") as file, io.TextIOWrapper(file) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        found = list(events(FileInput(["-"])))
    assert [event.data for event in found] == [event.data for event in events(FileInput([str(MYSQL)]))]
    assert {event.file for event in found} == {"stdin"}


def test_what_has_been_read_is_counted() -> None:
    source = FileInput([str(MYSQL), str(MARIADB)])
    assert source.total_bytes == MYSQL.stat().st_size + MARIADB.stat().st_size
    assert sum(len(event.data) for event in events(source)) == source.total_bytes - 8
    assert source.done_bytes == source.total_bytes


def test_events_before_a_cut_are_given(tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(MYSQL.read_bytes()[:300])
    found = []
    with pytest.raises(TruncatedError, match=f"{cut} at 232"):
        found.extend(events(FileInput([str(cut)])))


def test_a_file_is_followed_to_the_one_that_its_rotate_names(tmp_path: Path) -> None:
    """The log grows event by event, in pieces, and continues in another file, which ends without ROTATE."""
    data, stopped = MYSQL.read_bytes(), MARIADB.read_bytes()[:4277]
    first, second, third = (tmp_path / f"mysql-bin.00000{number}" for number in (1, 2, 3))
    first.write_bytes(data[:100])

    def grow() -> None:
        with first.open("ab", buffering=0) as file:
            for start in range(100, len(data), 1500):
                file.write(data[start : start + 1500])
                time.sleep(0.02)
        time.sleep(0.2)
        second.write_bytes(stopped)
        time.sleep(0.2)
        third.write_bytes(data)

    thread = threading.Thread(target=grow)
    thread.start()
    found = []
    for event in events(FileInput([str(first)], follow=True)):
        found.append(event)
        if event.path == str(third) and event.position == 4688:
            break
    thread.join()
    assert b"".join(event.data for event in found) == data[4:] + stopped[4:] + data[4:]


def test_encrypted_logs_are_opened_with_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    log = ENCRYPTED / "mariadb-ctr256.000001"
    refused = run("--json", str(log))
    assert refused.exit_code == 1
    assert "encrypted" in refused.stderr
    for name, key, cipher in (("ctr256", 32, "AES_CTR"), ("cbc128", 16, "AES_CBC")):
        log = ENCRYPTED / f"mariadb-{name}.000001"
        keys.write_text(f"# keys of the server\n1;{bytes(range(key)).hex()}\n")
        for given in (("--key-cipher", cipher), ()):
            opened = run("--json", "--key-file", str(keys), *given, str(log))
            assert opened.exit_code == 0, opened.stderr
            assert '"type":"XID_EVENT"' in opened.stdout
    wrong = run("--json", "--key-file", str(keys), "--key-cipher", "AES_CTR", str(log))
    assert wrong.exit_code == 1
    assert "is not an event: the log was written with another key, or the cipher another one" in wrong.stderr


KEY = bytes(range(32)).hex()


@pytest.mark.parametrize(
    "content",
    [
        f"1;{KEY}",
        f"1;{KEY} the key of the logs",
        f"1;{KEY};2024-05-01 # rotated",
        f"1;{KEY.upper()}\tcaf\xe9",
        f"# keys\r\n\r\n  \r\n 1;{KEY}\r\n2;{KEY[:48]}x\r\n",
        f"1 ; {KEY}\n",
        f"MySQLReplicationKey_u_1;{KEY[:32]}\n1;{KEY}",
    ],
)
def test_key_files_are_read_as_the_server_reads_them(content: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_bytes(content.encode("latin1"))
    opened = run("--json", "--key-file", str(keys), str(ENCRYPTED / "mariadb-ctr256.000001"))
    assert opened.exit_code == 0, opened.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no key\n", "line 1: expected is a key's id, a semicolon and 32, 48 or 64 hexadecimal digits"),
        (f"# keys\n1;{KEY}00\n", "line 2: expected"),
        (f"1;{KEY[:-1]}\n", "line 1: expected"),
        (f"1;{KEY[:20]}\n", "line 1: expected"),
        ("1;\n", "line 1: expected"),
        ("Salted__rest", "is encrypted itself (file_key_management_filekey)"),
    ],
)
def test_a_key_file_that_is_none_is_said_without_the_key(content: str, message: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(content)
    refused = run("--json", "--key-file", str(keys), str(ENCRYPTED / "mariadb-ctr256.000001"))
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert KEY[:20] not in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_folder_that_does_not_say_what_to_read(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_files(str(tmp_path))
    assert caught.value.message == (
        f"{tmp_path} is a folder with no log file, nor an index: name the files to read"
    )
    for name in ("b.index", "a.index"):
        (tmp_path / name).touch()
    with pytest.raises(UserError) as caught:
        find_files(str(tmp_path))
    assert caught.value.message == f"{tmp_path} is a folder with a.index, b.index: name the files to read"


def test_two_new_names_for_a_database() -> None:
    with pytest.raises(UserError) as caught:
        DatabaseRewrite.parse(["a->b", "a->c"])
    assert caught.value.message == "--rewrite-db has two new names for 'a'; leave one out"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://host:9092", "no source is named"),
        ("kafka:///shop", "no host"),
        ("kafka://host:9092,other:nine/shop", "'nine' is not a port"),
        ("kafka://host:9092/1shop", "a letter, then letters, digits, '_' or '-'"),
        (f"kafka://host:9092/{'s' * 201}", "at most 200 characters"),
    ],
)
def test_an_address_of_a_topic(url: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        TopicInput(url)
    assert caught.value.message == f"{url} is not kafka://host:port/SOURCE: {problem}"
    assert caught.value.exit_code is ExitCode.SETTINGS


def test_a_record_of_the_raw_topic_that_is_none() -> None:
    with pytest.raises(UserError) as caught:
        TopicInput("kafka://host:9092/shop")._placed(b"nonsense", b"")
    assert caught.value.message.startswith("shop.raw: b'nonsense' is not a raw key")
    assert caught.value.exit_code is ExitCode.DATA
