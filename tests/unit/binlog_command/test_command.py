"""``millrace binlog`` as a command: help, options that contradict, errors, endings, colours."""

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner, Result

from millrace import kernel
from millrace.binlog.event_codec import BinlogEvent, seal
from millrace.binlog.events import (
    QueryEvent,
    StatusVariables,
    StopEvent,
    TableMapEvent,
    UnknownEvent,
    WriteRowsEvent,
)
from millrace.binlog.file import MAGIC
from millrace.binlog.header import EventHeader
from millrace.binlog_command.terminal import coloured
from millrace.binlog_command.tool_options import TOOL_OPTIONS
from millrace.cli import main
from millrace.cli.binlog import binlog
from tests.hostile.mysql_server import MysqlServer

from .made_logs import ALL, TABLE_MAP, MadeLog, listed, rows
from .test_filters import packed

LOGS = Path(__file__).parent / "logs"
MYSQL = str(LOGS / "mysql.000001")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["binlog", *arguments], catch_exceptions=False)


def test_help_has_groups_and_examples() -> None:
    text = run("--help").output
    groups = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert [group.partition(" (")[0].rstrip(":") for group in groups] == [
        "Output",
        "Text",
        "Which events",
        "Input",
        "Server",
        "Screen",
        "Other",
        "Examples",
    ]
    assert "  millrace binlog -v binlog.000042\n" in text


def test_the_documentation_names_no_option_that_is_not_there() -> None:
    text = (Path(__file__).parents[3] / "docs" / "binlog-command.md").read_text()
    known = {name for parameter in binlog.params for name in (*parameter.opts, *parameter.secondary_opts)}
    of_clients = {"--binary-mode", "--local-infile", "--force"}
    of_tools = {f"--{option.name}" for option in TOOL_OPTIONS} | {
        "--skip-gtid-strict-mode",
        "--skip-",
        "--loose-",
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))
    assert named - known - of_clients - of_tools - {"--help"} == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stats", "--verify"], "--stats and --verify exclude each other"),
        (["--json", "--flashback"], "exclude each other"),
        (["--verify", "--table", "t"], "--verify works on whole logs, without filters"),
        (["--raw"], "--raw copies from one server: mysql://user@host:port/LOGFILE"),
        (["--after-gtids", "0-1-1"], "--after-gtids is for servers; --exclude-gtids is for any log"),
        (["--raw", "--after-gtids", "0-1-1", "mysql://h/"], "--raw copies from one server"),
        (["--to-last-log"], "--to-last-log is for servers: mysql://user@host:port/LOGFILE"),
        (["--flashback", "--follow"], "--flashback starts at the end of the log, and --follow has none"),
        (["--json", "--hexdump"], "--hexdump is for SQL text, not for --json"),
        (["--stats", "--rewrite-db", "a->b"], "--rewrite-db is for SQL text, not for --stats"),
        (["--flashback", "--short-form"], "--short-form is for SQL text, not for --flashback"),
        (
            ["--stop-position", "9", "kafka://h/s"],
            "which log is the last is not known here: --stop-position FILE:POSITION",
        ),
        (["--stop-position", "x"], "'x' is neither a position, nor file:position, nor GTIDs of MariaDB"),
        (["--start-datetime", "yesterday"], "--start-datetime"),
        (["--include-gtids", "1-2"], "'1-2' in a GTID set is not a uuid"),
        (["--type", "TEA_EVENT"], "'TEA_EVENT' is not an event type"),
        (["--op", "insert,upsert"], "'upsert' is none of insert, update, delete"),
    ],
)
def test_what_the_command_line_gets_wrong(arguments: list[str], message: str) -> None:
    outcome = run(*arguments, MYSQL)
    assert outcome.exit_code == 2
    assert message in outcome.stderr


def test_a_copy_of_a_server_is_of_whole_logs() -> None:
    outcome = run("--raw", "--after-gtids", "0-1-1", "mysql://h/")
    assert outcome.exit_code == 2
    assert "--raw copies whole logs, without --after-gtids" in outcome.stderr


@pytest.mark.parametrize(
    "address",
    [
        "mysql://u:secret@/x",
        "mysql://u:secret@host:port/",
        "mysql://u:secret@h/a/b",
        "kafka:///x",
        "kafka://h/",
    ],
)
def test_an_address_that_is_none_is_said_without_its_password(address: str) -> None:
    outcome = run("--json", address)
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("error: ")
    assert "is not " in outcome.stderr
    assert "secret" not in outcome.stderr


def test_a_file_that_is_no_log_is_one_line(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("hello")
    outcome = run(str(foreign))
    assert outcome.exit_code == 1
    assert outcome.stderr == (
        f"error: {foreign} at 0: not a binary log: it begins with 68 65 6c 6c, not with fe 62 69 6e\n"
    )
    assert outcome.stdout == ""


def test_a_missing_file_is_one_line() -> None:
    outcome = run("--stats", "/nowhere/binlog.000001")
    assert outcome.exit_code == 3
    assert outcome.stderr == "error: /nowhere/binlog.000001 cannot be read: No such file or directory\n"


@pytest.mark.parametrize("form", [(), ("--json",), ("--stats",), ("-vv", "--hexdump")])
def test_a_truncated_log_is_read_as_far_as_it_goes(form: tuple[str, ...], tmp_path: Path) -> None:
    cut = tmp_path / "cut.000001"
    cut.write_bytes(Path(MYSQL).read_bytes()[:-5])
    outcome = run(*form, str(cut))
    assert outcome.exit_code == 1
    assert outcome.stderr == (
        f"error: {cut} at 4688: the log ends in the middle of an event of 47 bytes, 42 bytes are there\n"
    )
    assert "4597" in outcome.stdout or "57 events" in outcome.stdout


WAYS = (
    (),
    ("-vv", "--base64-output=decode-rows"),
    ("-v", "--hexdump"),
    ("--short-form", "--force-read"),
    ("--json",),
    ("--json", "--force-read", "--no-verify-binlog-checksum"),
    ("-v", "--table", "shop.orders"),
    ("--stats",),
    ("--stats", "--json", "--force-read"),
    ("--verify",),
    ("--verify", "--no-verify-binlog-checksum"),
    ("--flashback", "--force-read"),
)


def logs_of_all_kinds(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield logs with the options that they need: whole, cut, damaged, joined, packed, encrypted."""
    chance = random.Random(5)
    for name in ("mysql.000001", "mariadb.000001", "mariadb-10.1.000001"):
        data = (LOGS / name).read_bytes()
        variants = [data, data + data, data + chance.randbytes(100), data + bytes(100)]
        variants += [data[: chance.randrange(len(data))] for _ in range(3)]
        for _ in range(3):
            at = chance.randrange(120, len(data))
            variants.append(data[:at] + chance.randbytes(1) + data[at + 1 :])
        for number, variant in enumerate(variants):
            path = folder / f"{number}-{name}"
            path.write_bytes(variant)
            yield (str(path),)
        packed_file = folder / f"{name}.zst"
        packed_file.write_bytes(zstandard.compress(data)[:-3])
        yield (str(packed_file),)
    payload = folder / "payload.000001"
    payload.write_bytes(MAGIC + b"".join(raw.data for raw in packed(MYSQL)))
    yield (str(payload),)
    unknown = MadeLog().query("BEGIN")
    header = EventHeader(1, 99, 1, 0, 0)
    for content in (b"", b"of a later server"):
        unknown.append(seal(BinlogEvent(header, UnknownEvent(content)), unknown.state))
    path = folder / "unknown.000001"
    path.write_bytes(MAGIC + b"".join(data for _, data in unknown.query("COMMIT").events))
    yield (str(path),)
    keys = folder / "keys.txt"
    keys.write_text(f"1;{bytes(range(32)).hex()}\n")
    encrypted = LOGS.parents[1] / "binlog" / "encrypted"
    yield (str(encrypted / "mariadb-ctr256.000001"),)
    for name in ("ctr256", "cbcnone"):
        yield ("--key-file", str(keys), str(encrypted / f"mariadb-{name}.000001"))


@pytest.mark.skipif(not kernel.built("events"), reason="the kernel is not built (make kernel)")
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_the_kernel_says_what_the_reference_says(
    way: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is wrong with a log, and all of what comes before that."""
    for log in logs_of_all_kinds(tmp_path):
        said = []
        for enabled in (True, False):
            monkeypatch.setattr(kernel, "_enabled", enabled)
            outcome = run(*way, *log)
            said.append((outcome.exit_code, outcome.stdout_bytes, outcome.stderr))
        assert said[0] == said[1], log


def test_events_that_cannot_be_read_stop_the_output_unless_forced(tmp_path: Path) -> None:
    data = bytearray(Path(MYSQL).read_bytes())
    data[1600] ^= 1
    damaged = tmp_path / "bad.000001"
    damaged.write_bytes(data)
    stopped = run("--json", str(damaged))
    assert stopped.exit_code == 1
    assert f"error: {damaged} at 1513: checksum" in stopped.stderr
    assert len(stopped.stdout.splitlines()) == 14
    forced = run("--json", "--force-read", str(damaged))
    assert forced.exit_code == 1
    assert len(forced.stdout.splitlines()) == 58
    assert '"position":1513,"sub_index":0,"error":"checksum' in forced.stdout
    unchecked = run("--json", "--no-verify-binlog-checksum", str(damaged))
    assert unchecked.exit_code == 0


def test_a_log_in_use_is_noted_or_refused(tmp_path: Path) -> None:
    data = bytearray(Path(MYSQL).read_bytes())
    data[21] |= 1
    used = tmp_path / "used.000001"
    used.write_bytes(data)
    noted = run("--json", str(used))
    assert noted.exit_code == 0
    assert noted.stderr == f"note: {used}: the log is in use, or was not closed properly\n"
    refused = run("--json", "--no-force-if-open", str(used))
    assert refused.exit_code == 1
    assert "is in use, or was not closed properly" in refused.stderr


def test_decode_rows_may_be_in_capitals_as_with_mysqlbinlog() -> None:
    outcome = run("-v", "--base64-output=DECODE-ROWS", MYSQL)
    assert outcome.exit_code == 0
    assert "### INSERT INTO `shop`.`items`" in outcome.stdout
    assert "BINLOG '" not in outcome.stdout


def test_output_goes_to_a_file(tmp_path: Path) -> None:
    result = tmp_path / "out.json"
    assert run("--json", "--result-file", str(result), MYSQL).output == ""
    assert result.read_text() == run("--json", MYSQL).stdout
    nowhere = run("--json", "--result-file", str(tmp_path / "no" / "folder"), MYSQL)
    assert nowhere.exit_code == 2
    assert "cannot be written" in nowhere.stderr


def test_a_full_disk_is_one_line() -> None:
    outcome = run("--json", "--result-file", "/dev/full", MYSQL)
    assert outcome.exit_code == 1
    assert outcome.stderr == "error: the output cannot be written: No space left on device\n"


def test_colours_are_added_around_lines_and_change_nothing_else() -> None:
    plain = run(MYSQL).stdout
    styled = run("--color", "always", MYSQL).stdout
    assert "\x1b[" not in plain
    assert "\x1b[33m# at 4\x1b[0m\n" in styled
    assert b"".join(coloured([b"SELECT 1\n### x\n"])) == b"SELECT 1\n\x1b[32m### x\x1b[0m\n"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "millrace.cli", "binlog", *arguments]


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    many = [MYSQL] * 40
    with subprocess.Popen(command("-vv", *many), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_what_is_followed_is_shown_as_it_comes(tmp_path: Path) -> None:
    """Up to the last event that is there, while the next is waited for."""
    growing = tmp_path / "growing.000001"
    growing.write_bytes(Path(MYSQL).read_bytes()[:-47])
    positions = [line["position"] for line in listed(MYSQL)]
    with MysqlServer() as server:
        for log, count in ((str(growing), 57), (server.url("mysql-bin.000001"), 58)):
            with subprocess.Popen(command("--json", "--follow", log), stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                shown = [json.loads(process.stdout.readline()) for _ in range(count)]
                process.send_signal(signal.SIGINT)
            assert [line["position"] for line in shown] == positions[:count]


def test_an_interrupt_ends_it_quietly(tmp_path: Path) -> None:
    growing = tmp_path / "growing.000001"
    growing.write_bytes(Path(MYSQL).read_bytes()[:-47])
    with subprocess.Popen(
        command("--json", "--follow", str(growing)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


def read_terminal(environment: dict[str, str], *arguments: str) -> str:
    """Run on a terminal, and give what it shows."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | environment
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            shown += piece
        process.wait(60)
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def test_text_is_coloured_and_paged_on_a_terminal(tmp_path: Path) -> None:
    pager = tmp_path / "pager.py"
    pager.write_text("import sys\nfor line in sys.stdin: print(line.replace('at 4', 'PAGED', 1), end='')\n")
    environment = {"TERM": "xterm", "NO_COLOR": "", "PAGER": f"{sys.executable} {pager}"}
    shown = read_terminal(environment, MYSQL)
    assert "\x1b[33m# PAGED\x1b[0m\n" in shown
    assert "# PAGED" not in read_terminal(environment, "--no-pager", MYSQL)
    assert "\x1b[" not in read_terminal(environment | {"NO_COLOR": "1"}, "--no-pager", MYSQL)


HARMFUL = "DO 'x\x1b]0;owned\x07\x9b31m\u202e', 'caf\udce9'\n\t, 'naïve\r'"
HARMFUL_BYTES = HARMFUL.encode("utf-8", "surrogateescape")


@pytest.fixture
def harmful(tmp_path: Path) -> str:
    """A log with names and statements that would act on a terminal."""
    log = MadeLog("8.0.30\x1b[2J")
    log.add(QueryEvent(9, 0, 0, StatusVariables(), "d\x1b[31m", HARMFUL_BYTES))
    evil = TableMapEvent(
        7, 1, "d\x1b[31m", "t\u202e", TABLE_MAP.column_types, TABLE_MAP.column_metadata, b"\2"
    )
    row = WriteRowsEvent(7, 1, b"", 2, b"", ALL, rows((None, (1, "\x1b[2J"))))
    log.add(evil, row, StopEvent())
    log.append(b"\0" * 4 + b"\x04" + b"\0" * 8)
    path = tmp_path / "a\x1b[2Jb.000001"
    path.write_bytes(b"\xfebin" + b"".join(data for _, data in log.events))
    return str(path)


FORMS = ((), ("-vv",), ("-vv", "--hexdump"), ("--json",), ("--stats",), ("--stats", "--json"), ("--verify",))


@pytest.mark.parametrize("form", FORMS)
def test_nothing_in_a_log_acts_on_a_terminal(form: tuple[str, ...], harmful: str) -> None:
    shown = read_terminal({"TERM": "dumb", "NO_COLOR": "1"}, "--no-pager", *form, harmful)
    shown = re.sub("\r.{0,200}%\x1b?(\\[K)?|\x1b\\[\\?25[hl]", "", shown)  # the bar of --stats and --verify
    assert re.findall("[^\t\n -~ïü]", shown) == []
    assert "x1b[2J" in shown or "u001b[2J" in shown


@pytest.mark.parametrize(
    "form", [("--color", "always"), ("--flashback", "--force-read", "--color", "always")]
)
def test_coloured_text_is_for_the_eye_wherever_it_goes(form: tuple[str, ...], harmful: str) -> None:
    text = subprocess.run(command(*form, harmful), capture_output=True, check=False).stdout.decode()
    assert re.findall("[^\t\n -~ïü]", re.sub("\x1b\\[[0-9]+m", "", text)) == []


def test_text_that_is_piped_is_exact(harmful: str) -> None:
    outcome = subprocess.run(command(harmful), capture_output=True, check=False)
    assert b"\n" + HARMFUL_BYTES + b"\n/*!*/;\n" in outcome.stdout
    assert b"use `d\x1b[31m`/*!*/;\n" in outcome.stdout
    message = outcome.stderr.decode()
    assert message.startswith("error: ")
    assert re.findall("[^\n -~]", message) == []
    assert message.count("\n") == 1


@pytest.mark.parametrize("form", [("--json", "--force-read"), ("--stats", "--json")])
def test_json_is_valid_whatever_a_log_holds(form: tuple[str, ...], harmful: str) -> None:
    output = subprocess.run(command(*form, harmful), capture_output=True, check=False).stdout.decode()
    assert re.findall("[^\n -~ï]", output) == []
    for line in output.splitlines():
        json.dumps(json.loads(line)).encode()
        assert "\\ud" not in line


def test_what_cannot_be_undone_has_an_exit_code_of_its_own() -> None:
    outcome = run("--flashback", MYSQL)
    assert outcome.exit_code == 8
    assert "the log does not say how to undo it" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert run("--flashback", "--force-read", MYSQL).exit_code == 0


def test_the_version_of_mariadb_10_1_ends_at_its_zero_byte() -> None:
    """A real log; the servers write a zero byte and "log" after the version."""
    log = str(LOGS / "mariadb-10.1.000001")
    assert "server v 10.1.23-MariaDB created " in run(log).stdout
    assert json.loads(run("--stats", "--json", log).stdout)["logs"][0]["server_version"] == "10.1.23-MariaDB"
    assert "\0" not in run(log).stdout + run("--json", log).stdout + run("--stats", log).stdout
    assert run("--verify", log).stdout == "sound: 12 events, 811 bytes in 1 log\n"


def test_progress_is_shown_on_a_terminal() -> None:
    shown = read_terminal({"TERM": "xterm"}, "--stats", MYSQL)
    assert "100%" in shown
    assert "58 events" in shown


def test_keys_that_cannot_be_read(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["binlog", "--key-file", str(tmp_path), str(tmp_path / "bin.000001")])
    assert (done.exit_code, done.output) == (2, f"error: {tmp_path} cannot be read: Is a directory\n")
