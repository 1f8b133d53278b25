"""The command lines of mysqlbinlog and mariadb-binlog: all their options, and the forms that they have."""

import csv
import getpass
import runpy
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import LengthMetadata, NoMetadata, PackMetadata
from millrace.binlog.columns.metadata import (
    MetadataRules,
    encode_column_metadata,
    encode_optional_metadata,
    full_metadata,
)
from millrace.binlog.events import MariadbGtidEvent, MariadbGtidFlag, StopEvent, TableMapEvent
from millrace.binlog_command.options import Options
from millrace.binlog_command.remote import server_address
from millrace.binlog_command.text import TextOptions
from millrace.binlog_command.tool_options import ASK, TOOL_OPTIONS, ToolOption, Tools, tool_arguments
from millrace.cli.binlog import binlog
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

from .made_logs import MadeLog, text_of
from .test_command import MYSQL, run

LISTED = Path(__file__).with_name("tool_options.tsv")
options_of = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "list_tool_options.py"))["options_of"]
PROGRAMS = {"mysqlbinlog": Tools.MYSQL, "mariadb-binlog": Tools.MARIADB}


def translated(*arguments: str) -> list[str]:
    return tool_arguments(binlog.get_params(click.Context(binlog)), arguments)


def test_the_table_has_the_options_that_the_programs_have() -> None:
    with LISTED.open() as file:
        listed = {
            (PROGRAMS[program], short, name, bool(value))
            for program, _, short, name, value in csv.reader(file, delimiter="\t")
        }
    ours = {
        (tool, option.short, option.name, option.takes_value or option.name in ("password", "debug"))
        for option in TOOL_OPTIONS
        for tool in PROGRAMS.values()
        if tool in option.tools
    }
    known = {name for _, _, name, _ in listed}
    assert ours - listed == set()
    assert listed - ours == set()
    assert {option.name for option in TOOL_OPTIONS} == known


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_this_machine_has_no_option_that_is_not_known(program: str) -> None:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    text = subprocess.run([path, "--no-defaults", "--help"], capture_output=True, check=True).stdout.decode()
    known = {option.name for option in TOOL_OPTIONS} | {"secure-auth"}
    assert {name for _, name, _ in options_of(text)} - known == set()


@pytest.mark.parametrize("option", TOOL_OPTIONS, ids=lambda option: str(option.name))
def test_each_option_is_one_of_ours_or_ignored_or_refused_with_its_reason(option: ToolOption) -> None:
    given = f"--{option.name}" + ("=BINLOG-DUMP-GTIDS" * option.takes_value)
    if option.refused:
        with pytest.raises(click.UsageError, match=f"^--{option.name} is not there: ") as raised:
            translated(given)
        assert option.refused in str(raised.value)
        assert option.harmless is None or translated(f"--{option.name}={option.harmless}") == []
        return
    if option.name in ("defaults-file", "defaults-extra-file"):
        given = f"--{option.name}=/dev/null"
    name = option.instead or option.name
    ours = {each for parameter in binlog.params for each in parameter.opts} | {"--help"}
    result = translated(given)
    assert option.short == "" or translated(f"-{option.short}", *["x"] * option.takes_value)[:1] == [
        each.replace("BINLOG-DUMP-GTIDS", "x") for each in result
    ]
    assert [each.partition("=")[0] for each in result] == [f"--{name}"] * (f"--{name}" in ours)
    assert f"--{name}" in ours or option.ignored or "defaults" in option.name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--start_position=4 --stop-pos 9", ["--start-position=4", "--stop-position=9"]),
        ("-j4 -vv -Hv", ["--start-position=4", "--verbose", "--verbose", "--hexdump", "--verbose"]),
        ("-uroot -psecret -P3307 -h db1", ["--user=root", "--password=secret", "--port=3307", "--host=db1"]),
        ("-p log", [f"--password={ASK}", "log"]),
        ("--password log", [f"--password={ASK}", "log"]),
        ("--skip-password log", ["--password=", "log"]),
        ("--skip-force-if-open", ["--no-force-if-open"]),
        ("--force-if-open=OFF --force-if-open=1", ["--no-force-if-open", "--force-if-open"]),
        ("--disable-print-row-count --enable-ssl", ["--skip-print-row-count", "--ssl"]),
        ("--hexdump --raw --skip-hexdump", ["--raw"]),
        ("--loose-no-such-thing --loose-hexdump", ["--hexdump"]),
        ("--skip-gtids --skip-annotate-row-events", ["--skip-gtids", "--skip-annotate-row-events"]),
        ("-C --character-sets-dir /x -l /y", ["--local-load=/y"]),
        ("-- -p", ["--", "-p"]),
        ("-", ["-"]),
        ("--no-defaults -D", ["--disable-log-bin"]),
        ("--read-from-remote-master=BINLOG-DUMP-GTIDS", ["--read-from-remote-source=BINLOG-DUMP-GTIDS"]),
    ],
)
def test_the_forms_of_a_command_line(
    given: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.binlog_command.tool_options._DEFAULT_FILES", ("/nowhere/my.cnf",))
    assert translated(*given.split()) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--start-p", None),
        ("--st=1", "--st may be --start-datetime, --start-position, "),
        ("--hexdump=maybe", "--hexdump is a switch: 'maybe' is none of 0, 1, OFF, ON, FALSE and TRUE"),
        ("--start-position", "is neither a position, nor file:position"),
        ("--skip-user", "--user is no switch"),
        ("--defaults-file=/nowhere/my.cnf", "the option file /nowhere/my.cnf cannot be read: No such file"),
        ("--ssl-cipher=AES", "--ssl-cipher is not there: TLS versions and ciphers"),
        ("--no-such-option", "No such option"),
        ("-Z", "No such option"),
    ],
)
def test_what_a_command_line_gets_wrong_is_one_line(given: str, message: str | None) -> None:
    outcome = run(given, MYSQL)
    assert outcome.exit_code == 2
    assert (message or "") in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_option_files_come_before_the_command_line(tmp_path: Path) -> None:
    more = tmp_path / "conf.d"
    more.mkdir()
    (more / "a.cnf").write_text("[mysqlbinlog_7]\nport = 3309\n[mysqld]\nuser=wrong\n")
    (more / "a.txt").write_text("[client]\nuser=wrong\n")
    file = tmp_path / "my.cnf"
    file.write_text(
        f"# comment\n[client]\nuser = repl # the user\n password=\"p#a\\\\s 's\" \nhost='db1'\n; comment\n"
        f"[mysqld]\nport=1\n[client-server]\nskip_ssl\nloose-nothing=1\n!includedir {more}\n"
    )
    given = ["--defaults-file", str(file), "--defaults-group-suffix=_7", "-h", "db2"]
    assert translated(*given) == [
        "--user=repl",
        "--password=p#a\\s 's",
        "--host=db1",
        "--skip-ssl",
        "--port=3309",
        "--host=db2",
    ]
    file.write_text(f"!include {file}\n")
    with pytest.raises(click.UsageError, match="option files include each other"):
        translated("--defaults-file", str(file))


def test_options_for_a_server_are_noted_where_files_are_read() -> None:
    outcome = run("-uroot", "-psecret", "--json", MYSQL)
    assert outcome.exit_code == 0
    assert outcome.stderr == "note: --user, --password: only --read-from-remote-server uses it\n"


def test_offset_counts_events_from_the_first_that_is_read() -> None:
    def positions(*arguments: str) -> list[str]:
        return [line for line in run(*arguments, MYSQL).stdout.splitlines() if line.startswith("# at ")]

    every = positions()
    assert positions("-o", "5") == [every[0], *every[5:]]
    start = every[7].removeprefix("# at ")
    assert positions("-j", start, "-o", "3")[1:] == every[9:]
    outcome = run("--json", "-o", "1000", MYSQL)
    assert outcome.stdout == ""
    assert outcome.stderr == "note: fewer events than --offset 1000 leaves out, in what was read\n"


def gtids(*arguments: str, log: Path) -> list[str]:
    lines = run(*arguments, str(log)).stdout.splitlines()
    return [line.rpartition("GTID ")[2].split()[0] for line in lines if "\tGTID " in line]


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Transactions of three domains and two servers of MariaDB."""
    log = MadeLog("11.8.6-MariaDB")
    for domain, server, number in ((0, 1, 5), (7, 2, 1), (7, 1, 2), (0, 1, 6), (8, 2, 1)):
        log.add(
            MariadbGtidEvent(number, domain, MariadbGtidFlag.TRANSACTIONAL, padding=bytes(6)),
            server_id=server,
        )
        log.query("COMMIT")
    path = tmp_path_factory.mktemp("domains") / "maria.000001"
    path.write_bytes(b"\xfebin" + b"".join(data for _, data in log.add(StopEvent()).events))
    return path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "0-1-5 7-2-1 7-1-2 0-1-6 8-2-1"),
        ("--do-domain-ids=7,9", "7-2-1 7-1-2"),
        ("--ignore-domain-ids=7", "0-1-5 0-1-6 8-2-1"),
        ("--do-server-ids=2", "7-2-1 8-2-1"),
        ("--ignore-server-ids=2", "0-1-5 7-1-2 0-1-6"),
        ("--do-domain-ids=0,7 --ignore-server-ids=2", "0-1-5 7-1-2 0-1-6"),
        ("--start-position=0-9-5", "7-2-1 7-1-2 0-1-6 8-2-1"),
        ("--stop-position=0-1-5,7-1-1", "0-1-5 7-2-1"),
        ("--start-position=7-1-1 --stop-position=7-1-2", "7-1-2"),
        ("--start-position=0-1-5 --stop-position=7-1-1", "7-2-1"),
    ],
)
def test_domains_and_positions_of_mariadb(given: str, expected: str, domains: Path) -> None:
    assert gtids(*given.split(), log=domains) == expected.split()


def test_a_position_of_mariadb_has_one_gtid_for_each_domain(domains: Path) -> None:
    outcome = run("--start-position=0-1-1,0-2-3", str(domains))
    assert outcome.exit_code == 2
    assert "has two GTIDs of the domain 0" in outcome.stderr


@pytest.mark.parametrize("statement", ["INSERT INTO t VALUES (1)", "CREATE TEMPORARY TABLE t (a INT)"])
def test_require_row_format_refuses_statements_that_change_rows(statement: str, tmp_path: Path) -> None:
    log = tmp_path / "bin.000001"
    made = MadeLog().query("CREATE TABLE u (a INT)").query(statement)
    log.write_bytes(b"\xfebin" + b"".join(data for _, data in made.events))
    outcome = run("--require-row-format", str(log))
    assert outcome.exit_code == 2
    assert "violates --require-row-format" in outcome.stderr
    assert "CREATE TABLE u" in outcome.stdout
    assert "REQUIRE_ROW_FORMAT=1" in outcome.stdout
    assert "pseudo_thread_id" not in outcome.stdout


def test_the_metadata_of_a_table_map_is_written_as_by_the_programs() -> None:
    columns = (
        Column(
            0,
            ColumnType.LONG,
            NoMetadata(),
            name="we`ird\nname",
            nullable=False,
            unsigned=True,
            key_position=1,
        ),
        Column(
            1,
            ColumnType.VARCHAR,
            LengthMetadata(60),
            name="v",
            charset="utf8mb4",
            key_position=0,
            key_prefix=5,
        ),
        Column(2, ColumnType.ENUM, PackMetadata(1), name="e", charset="utf8mb4", members=("a'b", "é\n")),
        Column(3, ColumnType.STRING, LengthMetadata(12), charset="binary", name="b"),
        Column(4, ColumnType.DATETIME, NoMetadata(), name="d"),
    )
    for version, separator, rules in (("9.7.4", ", ", "9.7.4"), ("11.8.6-MariaDB", ",", "11.8.6-MariaDB")):
        types, metadata = encode_column_metadata(columns)
        optional = encode_optional_metadata(full_metadata(columns, MetadataRules(rules)))
        event = TableMapEvent(7, 1, "shop", "t", types, metadata, b"\x1e", optional)
        text = text_of(MadeLog(version).add(event), options=TextOptions(table_metadata=True))
        lines = [line for line in text.splitlines() if line.startswith(("# Columns", "#   ", "# Primary"))]
        assert lines == [
            "# Columns(`we``ird\\nname` INT UNSIGNED NOT NULL,",
            "#         `v` VARCHAR(15) CHARSET utf8mb4 COLLATE utf8mb4_general_ci,",
            f"#         `e` ENUM('a\\'b'{separator}'é\\n') CHARSET utf8mb4 COLLATE utf8mb4_general_ci,",
            "#         `b` BINARY(12),",
            "#         `d` DATETIME)",
            "# Primary Key(v(5), we`ird\\nname)",
        ]


def test_the_short_form_of_mariadb_has_no_gtids(domains: Path) -> None:
    """As of mariadb-binlog 11.8: the server that loads it assigns its own."""
    text = run("--short-form", str(domains)).stdout
    assert text.count("START TRANSACTION") == 5
    assert "gtid_" not in text


PLACES = ("host", "port", "unix_socket", "user", "password", "ssl_mode", "ssl_ca")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("-hdb1 -P3307 -uu -px", ("db1", 3307, None, "u", "x", "PREFERRED", None)),
        ("-hdb1 -uu --ssl-mode=verify_ca --ssl-ca=CA", ("db1", 3306, None, "u", "", "VERIFY_CA", "CA")),
        ("-hdb1 -uu --ssl-ca=CA", ("db1", 3306, None, "u", "", "VERIFY_IDENTITY", "CA")),
        ("-hdb1 -uu --ssl-mode=REQUIRED --ssl-ca=CA", ("db1", 3306, None, "u", "", "REQUIRED", None)),
        (
            "-hdb1 -uu --ssl-ca=CA --skip-ssl-verify-server-cert",
            ("db1", 3306, None, "u", "", "REQUIRED", None),
        ),
        ("-hdb1 -uu --skip-ssl", ("db1", 3306, None, "u", "", "DISABLED", None)),
        ("-hdb1 -uu --ssl", ("db1", 3306, None, "u", "", "REQUIRED", None)),
        ("-S/run/my.sock -uu", ("localhost", 3306, "/run/my.sock", "u", "", "PREFERRED", None)),
        ("--protocol=tcp -uu", ("localhost", 3306, None, "u", "", "PREFERRED", None)),
        ("--protocol=tcp -uu -P0", ("localhost", 3306, None, "u", "", "PREFERRED", None)),
    ],
)
def test_where_a_server_is(
    given: str, expected: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    found = []

    def take(options: Options, name: str, note: object) -> None:
        found.append(server_address(options, name, lambda _message: None))
        raise UserError("stop", ExitCode.SETTINGS)

    monkeypatch.setattr("millrace.cli.binlog.server_address", take)
    for name in ("MILLRACE_CONFIG", "MYSQL_PWD", "MYSQL_TCP_PORT", "MYSQL_UNIX_PORT", "MARIADB_HOST"):
        monkeypatch.delenv(name, raising=False)
    outcome = run("--no-defaults", "-R", *given.replace("=CA", f"={ca}").split(), "bin.000001")
    assert outcome.stderr == "error: stop\n"
    (address,) = found
    assert address.log_file == "bin.000001"
    values = tuple(getattr(address.mysql, name) for name in PLACES)
    assert values == tuple(ca if value == "CA" else value for value in expected)


def test_settings_and_variables_fill_what_the_options_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_MYSQL_HOST", "db7:3309")
    monkeypatch.setenv("MYSQL_PWD", "secret")
    found = []

    def take(options: Options, name: str, note: object) -> None:
        found.append(server_address(options, name, lambda _message: None).mysql)
        raise UserError("stop", ExitCode.SETTINGS)

    monkeypatch.setattr("millrace.cli.binlog.server_address", take)
    run("--no-defaults", "-R", "bin.000001")
    monkeypatch.setenv("MILLRACE_MYSQL_USER", "repl")
    monkeypatch.setenv("MILLRACE_MYSQL_PASSWORD", "ours")
    run("--no-defaults", "--read-from-remote-source=BINLOG-DUMP-GTIDS", "bin.000001")
    first, second = found
    assert (first.host, first.port, first.user, first.password) == ("db7", 3309, getpass.getuser(), "secret")
    assert (second.host, second.user, second.password) == ("db7", "repl", "ours")


def test_a_port_of_the_environment_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_MYSQL_HOST", raising=False)
    monkeypatch.setenv("MYSQL_TCP_PORT", "3306a")
    outcome = run("--no-defaults", "-R", "bin.000001")
    assert (outcome.exit_code, "MYSQL_TCP_PORT is '3306a'" in outcome.stderr) == (2, True)


def test_every_option_of_the_command_has_a_place_in_its_options() -> None:
    named = {parameter.name for parameter in binlog.params if parameter.expose_value}
    assert named - {"logs"} == set(Options.__dataclass_fields__)
