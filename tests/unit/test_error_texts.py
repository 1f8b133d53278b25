"""What is told to a person, where no test of the part itself reads it: the whole text, and the exit code."""

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError

from millrace.avro.registry import RegistryError, SchemaRegistry
from millrace.avro.service_state import ReaderState
from millrace.binlog_command.rewrite import DatabaseRewrite
from millrace.binlog_command.topic import TopicInput
from millrace.cli import main
from millrace.cli.job import _help as job_help
from millrace.cli.status import _text
from millrace.installation import install_command
from millrace.kafka.chunks import ChunkError, split_parts
from millrace.kafka.client import connect
from millrace.kafka.errors import BrokerError
from millrace.kafka.state import _last_between
from millrace.kernel import build
from millrace.local import Kafka, LocalError
from millrace.local import database as local_database
from millrace.local import processes as local_processes
from millrace.mysql import identity
from millrace.mysql import server_log as server
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection, SslMode
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.errors import LinkLostError, ProtocolError, PurgedError, RefusedError, UnreachableError
from millrace.mysql.identity import ServerNames
from millrace.mysql.packets import DumpEnd
from millrace.mysql.position import _heartbeat_v2
from millrace.mysql.server_log import ServerLog
from millrace.mysql.status import LogFile
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.health import Health
from millrace.runtime.metrics import HttpServer, new_registry
from millrace.runtime.settings import CONFIG_VARIABLE, KafkaSettings, RegistrySettings, load_settings
from millrace.verify.raw import folder_log
from millrace.verify.snapshot import take_snapshot
from services.decoder.settings import DecoderSettings
from services.reader import live
from services.reader.live import LiveSource
from services.reader.settings import ReaderSettings
from services.rowmapper.redrive import _chosen
from spark_jobs.common.job import _bound, _settings
from spark_jobs.common.job import errors_in_words as job_errors
from spark_jobs.loop_detection import _servers

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from services.reader.stage import RawStage


def test_two_new_names_for_a_database() -> None:
    with pytest.raises(UserError) as caught:
        DatabaseRewrite.parse(["a->b", "a->c"])
    assert caught.value.message == "--rewrite-db has two new names for 'a'; leave one out"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://host:9092", "no source is named"),
        ("kafka:///shop", "no host"),
        ("kafka://host:9092,other:nine/shop", "'nine' is no port"),
        ("kafka://host:9092/1shop", "a letter, then letters, digits, '_' or '-'"),
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
    assert caught.value.message.startswith("shop.raw: b'nonsense' is no raw key")
    assert caught.value.exit_code is ExitCode.DATA


def test_an_option_for_servers() -> None:
    done = CliRunner().invoke(main, ["binlog", "--to-last-log", "some.file"])
    assert done.exit_code == 2
    assert "--to-last-log is for servers: mysql://user@host:port/LOGFILE" in done.output


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError) as caught:
            HttpServer("127.0.0.1", port, Health(), new_registry())
    assert caught.value.message == (
        f"health and metrics cannot be served on 127.0.0.1:{port}: Address already in use; "
        "set MILLRACE_HTTP_HOST and MILLRACE_HTTP_PORT, or port 0 for none"
    )


def test_a_configuration_that_is_no_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "millrace.toml"
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    with pytest.raises(SettingsError) as caught:
        load_settings(DecoderSettings)
    assert caught.value.message == f"MILLRACE_CONFIG: {file} cannot be read: No such file or directory"
    file.write_text("source = ")
    with pytest.raises(SettingsError) as caught:
        load_settings(DecoderSettings)
    assert caught.value.message.startswith(f"MILLRACE_CONFIG: {file} is no TOML file: ")


def test_kafka_settings_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        connect(
            KafkaSettings(
                bootstrap_servers="localhost:1",
                security_protocol="SSL",
                ssl_ca_location=tmp_path / "nothing.pem",
            )
        )
    assert caught.value.message.startswith("the settings for Kafka cannot be used: ")
    assert caught.value.exit_code is ExitCode.KAFKA


def address(port: int, **options: object) -> MysqlAddress:
    return MysqlAddress(
        host="127.0.0.1",
        port=port,
        user="u",
        password="",
        connect_timeout_s=1,
        **options,  # type: ignore[arg-type]
    )


def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UnreachableError) as caught:
            MysqlConnection(address(port))
    assert str(caught.value) == (
        f"127.0.0.1:{port}: no answer within 1 s while waiting for its greeting; look whether a MySQL or "
        "MariaDB server listens there and is not overloaded (MILLRACE_MYSQL_CONNECT_TIMEOUT_S)"
    )


@pytest.mark.parametrize("mode", [SslMode.VERIFY_CA, SslMode.REQUIRED])
@pytest.mark.parametrize("name", ["ssl_ca", "ssl_cert", "ssl_key"])
def test_tls_files_that_cannot_be_read(tmp_path: Path, name: str, mode: SslMode) -> None:
    with pytest.raises(RefusedError) as caught:
        MysqlConnection(address(1, ssl_mode=mode, **{name: tmp_path}))
    assert str(caught.value) == (
        f"127.0.0.1:1: {tmp_path} cannot be read: Is a directory; see MILLRACE_MYSQL_{name.upper()}"
    )


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(RefusedError) as caught:
        MysqlConnection(address(1, ssl_mode=SslMode.VERIFY_CA, ssl_ca=tmp_path / "ca.pem"))
    assert str(caught.value).startswith("127.0.0.1:1: the TLS files cannot be used: ")
    assert str(caught.value).endswith("; see MILLRACE_MYSQL_SSL_CA, _SSL_CERT and _SSL_KEY")


def test_hosts_that_cannot_be() -> None:
    with pytest.raises(UnreachableError) as caught:
        MysqlConnection(MysqlAddress("db..example", user="u", password=""))
    assert str(caught.value) == (
        "db..example:3306: there can be no host of that name; check MILLRACE_MYSQL_HOST"
    )
    url = "http://b\u00fc..example:8081"
    with pytest.raises(RegistryError) as refused, SchemaRegistry(RegistrySettings(url=url)) as registry:
        registry.check()
    assert refused.value.message.startswith(f"there can be no schema registry at {url} (")
    assert refused.value.message.endswith("): check MILLRACE_REGISTRY_URL")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x01\x09abc", "a heartbeat's field of 9 bytes reaches past its end: 0109616263"),
        (b"\x01\xfc\x01", "a heartbeat's field reaches past its end, at byte 1 of 01fc01"),
    ],
)
def test_a_heartbeat_that_is_cut(body: bytes, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        _heartbeat_v2(body)
    assert str(caught.value) == message


def test_the_name_of_a_place_to_start_a_job_at() -> None:
    with pytest.raises(SettingsError) as caught:
        _bound("--start", "yesterday")
    assert caught.value.message == (
        "--start is 'yesterday': expected earliest, latest, an offset, a time as 2026-01-31T10:00, or how "
        "long ago, as 90m, 24h or 7d"
    )


def test_the_name_of_a_source_for_a_job() -> None:
    with pytest.raises(SettingsError) as caught:
        _settings(["1shop"], None, None)
    assert caught.value.message.startswith("--source: ")
    assert "a letter, then letters, digits, '_' or '-'" in caught.value.message


def live_source(start: str) -> LiveSource:
    settings = load_settings(
        ReaderSettings,
        source="shop",
        kafka={"bootstrap_servers": "localhost:1"},
        mysql={"host": "db"},
        start=start,
    )
    return LiveSource(settings, cast("RawStage", None), lambda: None, lambda: None)


SERVER = cast(
    "MysqlConnection",
    SimpleNamespace(flavour=Flavour.MYSQL, address=MysqlAddress("db"), query=lambda *_, **__: []),
)
"""A server of MySQL that lists no logs."""

REPLICA = ReplicaIdentity(7, "a-b", "millrace")


def start_at(start: str) -> None:
    """Look for the place where a reader is to start the first time."""
    live_source(start)._start(SERVER, ServerNames(None, None), start, None)


def test_what_a_server_has_purged() -> None:
    with pytest.raises(PurgedError) as caught:
        live_source("earliest")._gap_allowed(SERVER, "the server no longer has bin.000001", "bin.000007")
    assert str(caught.value) == (
        "db:3306: the server no longer has bin.000001. Put the files back, read a copy of them under another "
        "MILLRACE_SOURCE with MILLRACE_FILES, or continue without them at bin.000007 with "
        "MILLRACE_ON_GAP=continue; and keep logs for longer (binlog_expire_logs_seconds, expire_logs_days)"
    )


def test_a_position_that_cannot_be_asked_for() -> None:
    with pytest.raises(UserError) as caught:
        start_at("bin.000001:5000000000")
    assert caught.value.message == (
        "MILLRACE_START leads to bin.000001:5000000000, and a server without GTIDs can be asked for "
        "positions below 4 GiB only; start at an earlier one"
    )


def test_a_set_of_gtids_to_start_at_that_is_none() -> None:
    """Where a server is of another kind than the settings think."""
    with pytest.raises(UserError) as caught:
        start_at("gtid:0-1-5")
    assert caught.value.message == "MILLRACE_START is wrong: 0-1-5 is no GTID set of MySQL, which db:3306 is"


def test_server_ids() -> None:
    with pytest.raises(click.BadParameter) as caught:
        _servers(click.Context(main), click.Option(["--servers"]), "1,b")
    assert caught.value.message == "'1,b': expected server ids separated by commas, as 1,2"


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bin.000001").mkdir()
    with pytest.raises(UserError) as caught:
        list(folder_log(tmp_path)("bin.000001", 4))
    assert caught.value.message == f"{tmp_path}/bin.000001 cannot be read: Is a directory"
    assert caught.value.exit_code is ExitCode.SOURCE


def test_nodes_of_kafka() -> None:
    with pytest.raises(LocalError, match=r"^Kafka runs with 1 or 3 nodes here, not 2$"):
        Kafka(2)


def test_another_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_database.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(local_database.platform, "machine", lambda: "arm64")
    with pytest.raises(LocalError) as caught:
        local_database._require_linux_amd64("MySQL")
    assert str(caught.value) == (
        "there is no MySQL to fetch for Darwin on arm64, only for Linux on x86-64; "
        "use a server of your own instead"
    )


def test_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_processes, "_is_free", lambda _port: False)
    with pytest.raises(LocalError, match=r"^found no free port between \d+ and \d+ on 127\.0\.0\.1$"):
        local_processes.reserve_port()


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_processes.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "millrace-4242"
    if len(str(folder)) > local_processes._LONGEST_BASE:
        monkeypatch.setattr(local_processes, "_LONGEST_BASE", len(str(folder)))
    monkeypatch.setattr(local_processes.os, "getuid", lambda: 4242)
    with pytest.raises(LocalError) as caught:
        local_processes._base_folder()
    assert str(caught.value) == (
        f"{folder} is no folder of yours, but another user's or a link: set TMPDIR to a folder of your own"
    )


def test_a_folder_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in it is removed when its servers are gone: it must not be somewhere else."""
    monkeypatch.setattr(local_processes.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"millrace-{os.getuid()}"
    monkeypatch.setattr(local_processes, "_LONGEST_BASE", len(str(folder)))
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalError, match="or a link: set TMPDIR"):
        local_processes._base_folder()
    folder.unlink()
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert local_processes._base_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("_include_folders", list, "no C headers of Python "),
        ("_compiler", lambda: ["/nowhere/cc"], "no C compiler: /nowhere/cc is not on PATH"),
        (
            "importlib.util.find_spec",
            lambda _name: None,
            "no Cython: the extra 'kernel' brings it$",
        ),
    ],
)
def test_what_the_kernel_lacks(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, message: str
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda path: None if path == "/nowhere/cc" else path)
    monkeypatch.setattr(f"millrace.kernel.build.{name}", value)
    with pytest.raises(build.BuildError, match=f"^{message}"):
        build._require_tools()


def test_gtids_to_start_at_that_are_none() -> None:
    with pytest.raises(UserError) as caught:
        start_at("gtid:yesterday")
    assert caught.value.message.startswith("MILLRACE_START is wrong: ")
    assert "yesterday" in caught.value.message
    assert caught.value.exit_code is ExitCode.SETTINGS


def test_a_position_that_no_dump_begins_at() -> None:
    for position in (3, 1 << 32):
        with pytest.raises(
            ValueError, match=f"^position {position} does not fit a dump by file and position$"
        ):
            Dump.at_position(SERVER, REPLICA, "bin.000001", position)


def test_a_log_that_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has made the file, and has not written its head yet."""

    class Empty:
        def read(self, _timeout_s: float) -> NoReturn:
            raise DumpEnd

    monkeypatch.setattr(identity, "MysqlConnection", lambda *_: nullcontext())
    monkeypatch.setattr(identity.Dump, "at_position", lambda *_, **__: Empty())
    with pytest.raises(LinkLostError) as caught:
        identity.read_head(MysqlAddress("db"), REPLICA, "bin.000002")
    assert str(caught.value) == "db:3306: bin.000002 has no format description yet"


def test_a_value_that_came_in_other_parts_than_it_has() -> None:
    with pytest.raises(ChunkError, match=r"^a value of 5 bytes came as 2 bytes$"):
        list(split_parts([b"a", b"b"], 5, 10))


def test_spark_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("spark_jobs")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    done = CliRunner().invoke(main, ["job", "analytics", "--source", "shop"])
    assert done.exit_code == 2
    assert done.output.startswith("error: Spark is not installed (")
    assert done.output.endswith(f"): {install_command('spark', 'local')}\n")
    listed = CliRunner().invoke(main, ["job", "--help"])
    assert listed.exit_code == 0
    assert "  analytics       Report events per type and minute, rows per table" in listed.output
    for name in ("analytics", "loop_detection", "loop-detection"):
        done = CliRunner().invoke(main, ["job", name, "--help"])
        assert done.exit_code == 0
        assert done.output == job_help(name.replace("-", "_"))


def test_no_service_has_run() -> None:
    assert list(_text([])) == ["Kafka knows no source: no service has run"]


LATER = LogFile("bin.000007", 100)
READ = ReaderState(0, "bin.000001", 4, gtid_set=f"{'0' * 8}-0000-0000-0000-{'0' * 12}:1-5")
GONE = (
    ". Put the files back, read a copy of them under another MILLRACE_SOURCE with MILLRACE_FILES, or "
    "continue "
)


def purged(monkeypatch: pytest.MonkeyPatch, act: Callable[[LiveSource], object]) -> str:
    """What is said where the oldest log of a server is the seventh."""
    monkeypatch.setattr(live, "binary_logs", lambda _: [LATER])
    monkeypatch.setattr(live, "creation_time", lambda *_: 2**32)
    with pytest.raises(PurgedError) as caught:
        act(live_source("earliest"))
    said, mark, advice = str(caught.value).partition(GONE)
    assert mark
    assert advice.startswith("without them at bin.000007 with MILLRACE_ON_GAP=continue; ")
    return said


def test_what_is_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ServerNames(None, None)
    gone = READ.gtid_set.replace("1-5", "1-9")
    assert purged(monkeypatch, lambda source: source._after_purge(SERVER, names, READ)) == (
        "db:3306: the server no longer has bin.000001, which was read up to 4: what lies between that and "
        "bin.000007, its oldest, is missing"
    )
    assert purged(
        monkeypatch, lambda source: source._after_gtids(SERVER, names, READ.gtid_set, gone, None)
    ) == (
        "db:3306: the server has purged logs that were not read, with the transactions "
        f"{READ.gtid_set.replace('1-5', '6-9')}"
    )
    assert purged(monkeypatch, lambda source: source._start_position_at(SERVER, "2026-01-31T12:00:00Z")) == (
        "db:3306: what was written between 2026-01-31T12:00:00Z and the oldest log, bin.000007, is purged"
    )


def test_a_server_that_lists_no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MysqlConnection", lambda _: nullcontext(SERVER))
    with pytest.raises(RefusedError, match=r"^db:3306: the server has no binary log$"):
        ServerLog(MysqlAddress("db")).binary_logs()


def test_a_snapshot_of_a_server_without_a_log() -> None:
    silent = SimpleNamespace(flavour=Flavour.MARIADB, address=MysqlAddress("db"), query=lambda *_, **__: [])
    with pytest.raises(UserError) as caught:
        take_snapshot(cast("MysqlConnection", silent), idle=True)
    assert caught.value.message == "db:3306: the binary log is off"
    assert caught.value.exit_code is ExitCode.SOURCE


def test_a_log_file_that_is_empty(tmp_path: Path) -> None:
    (tmp_path / "bin.000001").touch()
    with pytest.raises(UserError) as caught:
        list(folder_log(tmp_path)("bin.000001", 4))
    assert caught.value.message == (
        f"{tmp_path}/bin.000001 is no binary log, or an encrypted one: it begins with nothing"
    )


def test_keys_that_cannot_be_read(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["binlog", "--key-file", str(tmp_path), str(tmp_path / "bin.000001")])
    assert (done.exit_code, done.output) == (2, f"error: {tmp_path} cannot be read: Is a directory\n")


def test_a_name_of_a_source_that_is_too_long() -> None:
    with pytest.raises(UserError) as caught:
        TopicInput(f"kafka://host:9092/{'s' * 201}")
    assert caught.value.message.endswith(" is not kafka://host:port/SOURCE: at most 200 characters")
    with pytest.raises(SettingsError) as wrong:
        load_settings(DecoderSettings, source="s" * 201, kafka={"bootstrap_servers": "localhost:1"})
    assert wrong.value.problems[0].startswith("MILLRACE_SOURCE is wrong: ")
    assert wrong.value.problems[0].endswith(", at most 200")


def test_a_table_that_is_not_quarantined() -> None:
    with pytest.raises(UserError) as caught:
        _chosen("shop", (), ["shop.t"])
    assert caught.value.message == "shop.t is no table of shop that is quarantined; quarantined are: none"


def test_a_state_that_a_broker_does_not_give() -> None:
    class Broken:
        def assign(self, _partitions: object) -> None:
            pass

        def consume(self, _count: int, _timeout_s: float) -> list[object]:
            refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed")
            place = {"topic": lambda: "shop.state", "partition": lambda: 0, "offset": lambda: 0}
            return [SimpleNamespace(error=lambda: refused, **place)]

    at = "shop.state", 0
    with pytest.raises(BrokerError) as caught:
        _last_between(cast("Consumer", Broken()), {at: range(1)}, {at: 0}, lambda _: True)
    assert caught.value.message == "shop.state cannot be read: not allowed"


def test_health_in_words() -> None:
    health = Health()
    with HttpServer("127.0.0.1", 0, health, new_registry()) as server_, pytest.raises(HTTPError) as caught:
        urlopen(f"http://127.0.0.1:{server_.port}/readyz")
    with caught.value as answer:
        assert (answer.code, answer.read()) == (503, b"not ready\n")


def test_a_bug_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, job_errors("analytics"):
        raise KeyError("surprise")
    assert caught.value.code == ExitCode.BUG
    said = capsys.readouterr().err
    assert said.endswith("error: analytics met a bug of its own (KeyError), told above\n")
    assert "surprise" in said


def test_a_job_that_is_interrupted_while_java_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    """Py4J logs the interrupt and says that the call has failed."""

    def select() -> NoReturn:
        logging.getLogger().error("while sending command", exc_info=KeyboardInterrupt())
        raise KeyError("An error occurred while calling o73.select")

    def stop() -> NoReturn:
        try:
            raise KeyboardInterrupt
        finally:
            raise KeyError("stopping Spark")

    for ask in (select, stop):
        with pytest.raises(KeyboardInterrupt), job_errors("analytics"):
            ask()
    assert capfd.readouterr() == ("", "")
