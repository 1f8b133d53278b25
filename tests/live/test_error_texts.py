"""What is told of topics that hold what they should not, or lack what they should have: the whole texts."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from millrace.avro.records import DeadLetter, RecordSerializer
from millrace.avro.registry import SchemaRegistry, wire_prefix
from millrace.cli import main
from millrace.contract import HEADER_CHUNK, Topics
from millrace.demo import run as demo_run
from millrace.demo.pipeline import Endpoints, Services
from millrace.demo.run import Demo, Options
from millrace.kafka import topics as kafka_topics
from millrace.kafka.client import connect
from millrace.kafka.errors import BrokerError
from millrace.kafka.read import read_topic
from millrace.kafka.topics import ensure_topics
from millrace.local import Kafka, LocalError, MySQL, Registry
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.errors import LinkLostError
from millrace.rowmapper.ports import CatalogTopic, Ports
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings, RegistrySettings, TopicsSettings
from millrace.verify.tables import Records
from tests.service_process import source_environment
from tests.shared import PROJECT, run_python

pytestmark = pytest.mark.usefixtures("same_signals")

KINDS = ("raw", "catalog", "events", "transactions", "deadletter", "state")
_COM_PING = 0x0E
KEY = b"1:0:bin.000001:4:0"


class World:
    """A source of which a test writes the topics itself."""

    def __init__(self, kafka: Kafka, registry: Registry, source: str) -> None:
        self.topics = Topics(source)
        self.settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.registry_url = registry.url
        self.environment = {
            **source_environment(kafka, source, registry),
            "MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY": "true",
        }
        kinds = {f"{source}.{kind}": kind for kind in KINDS}
        ensure_topics(connect(self.settings), TopicsSettings(), kinds)

    def write(self, topic: str, *records: tuple[bytes, bytes, str | None]) -> None:
        """Write records, each as key, value and header chunk."""
        servers = self.settings.bootstrap_servers
        # Else what a broker takes only when it is sent again may come after what was sent later.
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        for key, value, chunk in records:
            producer.produce(
                topic, value, key, 0, headers=[(HEADER_CHUNK, chunk.encode())] if chunk else None
            )
        assert producer.flush(120) == 0

    def command(self, *arguments: str, code: int, **environment: str) -> Result:
        cleared = dict.fromkeys(name for name in os.environ if name.startswith("MILLRACE_"))
        done = CliRunner().invoke(main, arguments, env={**cleared, **self.environment, **environment})
        assert done.exit_code == code, (done.output, done.exception)
        return done

    def service(self, name: str, **environment: str) -> tuple[int, str]:
        """Run a service that ends by itself; give its exit code and what it said."""
        done = run_python("-m", f"services.{name}", settings={**self.environment, **environment})
        return done.returncode, done.stderr


@pytest.fixture
def place(kafka: Kafka, registry: Registry, source_name: str) -> World:
    return World(kafka, registry, source_name)


@pytest.fixture
def dead_letter(place: World) -> Iterator[bytes]:
    """A dead letter as the decoder writes it."""
    with SchemaRegistry(RegistrySettings(url=place.registry_url)) as registry:
        serialize = RecordSerializer(registry, place.topics.deadletter, "DeadLetter")
        yield serialize(
            DeadLetter(
                service="decoder",
                error_class="TruncatedError",
                error="it is cut",
                topic=place.topics.raw,
                offset=0,
                key=KEY,
                epoch=0,
                log_file="bin.000001",
                position=4,
                table=None,
                value=b"bytes",
                context=None,
            ).to_dict()
        )


def test_records_that_are_no_dead_letters(place: World, dead_letter: bytes) -> None:
    topic = place.topics.deadletter
    place.write(
        topic,
        (b"a", b"nonsense", None),
        (b"b", b"", None),
        (KEY, dead_letter[:-3], None),
        (KEY, dead_letter + b"xx", None),
        (b"other", dead_letter, None),
        (b"c", wire_prefix(999_999) + b"x", None),
        (b"d", b"second", "1/2"),
        (b"e", b"first", "0/2"),
        (b"e", b"first again", "0/2"),
        (KEY, dead_letter, None),
    )
    lines = place.command("deadletter", "list", code=0).output.splitlines()
    found = {int(line.split()[0]): line.partition("  -      ")[2] or line for line in lines}
    prefix = "is not 00 and a schema id, Confluent's wire format"
    assert found[0].endswith(f"it is not a dead letter: 6e6f6e7365 {prefix}")
    assert found[1].endswith(f"it is not a dead letter: nothing {prefix}")
    assert "it is not a dead letter: " in found[2]
    assert found[3].endswith("it is not a dead letter: 2 bytes are left over")
    assert found[4].endswith(f"it is not a dead letter of this key: {KEY!r}")
    assert found[5].endswith(f"it is not a dead letter: its schema, 999999, is none of {topic}-value")
    assert "chunk" in found[6]
    assert found[7].endswith("its last chunks are missing")
    assert found[8].endswith("its last chunks are missing")
    assert found[9].endswith("TruncatedError: it is cut")

    shown = place.command("deadletter", "show", "3", code=7).output
    assert shown == (
        f"error: the record at offset 3 of {topic} cannot be read: it is not a dead letter: "
        "2 bytes are left over\n"
    )
    shown = place.command("deadletter", "show", "10", code=2).output
    assert shown == (
        f"error: no dead letter begins at offset 10 of {topic}; 'millrace deadletter list' names them\n"
    )
    assert "error:       TruncatedError: it is cut" in place.command("deadletter", "show", "9", code=0).output
    assert place.command("deadletter", "redrive", code=0).output == (
        f"no table of {place.topics.source} is quarantined\n"
    )
    missing = place.command("deadletter", "list", code=4, MILLRACE_SOURCE="nobody").output
    assert missing == (
        f"error: there is no topic nobody.deadletter at {place.settings.bootstrap_servers}: "
        "check the source's name\n"
    )
    missing = place.command("topic", "no-such-topic", code=1).output
    assert missing.startswith("error: there is no topic no-such-topic; there are: ")
    assert topic in missing.split()


def test_services_that_have_never_run(place: World, mysql: MySQL) -> None:
    source, server = place.topics.source, {"MILLRACE_MYSQL_HOST": mysql.host}
    said = place.command("verify", "raw", "/", code=2).output
    assert said == f"error: the reader of {source} has no state: has it ever run?\n"
    said = place.command("verify", "raw", str(PROJECT), "--epoch", "0", code=2).output
    assert said == f"error: {place.topics.raw} holds no events of epoch 0\n"
    account = {
        "MILLRACE_MYSQL_PORT": str(mysql.port),
        "MILLRACE_MYSQL_USER": mysql.user,
        "MILLRACE_MYSQL_PASSWORD": mysql.password,
    }
    database = source.replace("-", "_")
    mysql.execute(f"CREATE DATABASE {database}", f"CREATE TABLE {database}.t (id INT)")
    said = place.command("verify", "rows", "--idle", code=2, **server, **account).output
    assert said == f"error: the reader of {source} has no state: has it ever run?\n"
    mysql.execute(f"DROP DATABASE {database}")


@pytest.mark.parametrize("service", ["decoder", "rowmapper"])
def test_no_registry(place: World, service: str, free_port: int) -> None:
    nobody, nothing = (
        f"http://127.0.0.1:{free_port}",
        place.registry_url.replace("/apis/ccompat/v7", "/nothing"),
    )
    for url, begins, words in (
        (nobody, f"the schema registry at {nobody} does not answer", "is MILLRACE_REGISTRY_URL right?"),
        (nothing, "", "MILLRACE_REGISTRY_URL must be the root"),
    ):
        code, said = place.service(service, MILLRACE_REGISTRY_URL=url)
        assert (code, said.count("\n")) == (ExitCode.REGISTRY, 1), said
        assert said.startswith(f"error: {begins}")
        assert words in said


def test_states_that_cannot_be_read(place: World, mysql: MySQL) -> None:
    topic = place.topics.state
    place.write(topic, *((name, b"nonsense", None) for name in (b"reader", b"decoder", b"rowmapper")))
    server = {"MILLRACE_MYSQL_HOST": mysql.host, "MILLRACE_MYSQL_PORT": str(mysql.port)}
    services = (("reader", "Reader", server), ("decoder", "Decoder", {}), ("rowmapper", "RowMapper", {}))
    for module, name, environment in services:
        code, said = place.service(module, **environment)
        assert (code, said.count("\n")) == (ExitCode.DATA, 1), said
        assert said.startswith(f"error: the state in {topic} cannot be read: {name}State: 6e6f is not c3 01")
    commands = ((["verify", "raw", "/"], "Reader"), (["deadletter", "list"], "RowMapper"))
    for command, name in (*commands, (["deadletter", "redrive"], "RowMapper")):
        said = place.command(*command, code=7).output
        assert said.startswith(f"error: the state in {topic} cannot be read: {name}State: 6e6f is not c3 01")
    report = json.loads(place.command("doctor", "--json", code=1, **server).output)
    (found,) = [found for found in report["findings"] if found["check"] == "reader_state"]
    assert found["text"].startswith(
        "the reader's state cannot be read: ReaderState: 6e6f is not c3 01, the start of an Avro single "
        "object; 'millrace state rebuild reader'"
    )
    assert found["advice"] == "was it written by a newer version?"
    status = place.command("status", code=0).output
    for name in ("Reader", "Decoder", "RowMapper"):
        assert f"{name}State: 6e6f is not c3 01, the start of an Avro single object" in status


def test_a_definition_that_cannot_be_read(place: World) -> None:
    place.write(place.topics.catalog, (b"shop.t", b"nonsense", None))
    none, settings = cast("Any", None), SimpleNamespace(kafka=place.settings, names=place.topics)
    service = cast("Any", SimpleNamespace(settings=settings))
    ports = Ports(service, connect(place.settings), none, none, none, {}, lambda: None)
    with pytest.raises(UserError) as caught:
        list(CatalogTopic(ports).read())
    assert caught.value.message == (
        f"the definition at offset 0 of {place.topics.catalog} cannot be read: Catalog: 6e6f is not c3 01, "
        "the start of an Avro single object"
    )
    assert caught.value.exit_code is ExitCode.DATA


def test_records_that_nobody_can_read(place: World, dead_letter: bytes, mysql: MySQL) -> None:
    """Beside them others are read; where all are needed, the first one is named."""
    database, topics = place.topics.source.replace("-", "_"), place.topics
    rows = topics.table(database, "t")
    ensure_topics(connect(place.settings), TopicsSettings(), {rows: "table"})
    unknown = wire_prefix(999_999) + b"x"
    for topic in (topics.events, rows):
        place.write(topic, (b"\0\0", b"nonsense", None), (KEY, unknown, None), (KEY, dead_letter[:-3], None))
    place.write(rows, (KEY, dead_letter, None))
    found = [json.loads(line) for line in place.command("topic", rows, code=0).output.splitlines()]
    assert found[0]["key"]["unreadable"] == "0000 is not 00 and a schema id, Confluent's wire format"
    assert found[0]["value"] == "nonsense"
    assert found[1]["value"]["unreadable"].endswith(
        "refuses the schema 999999 (HTTP 404): Schema 999999 not found."
    )
    assert found[2]["value"]["unreadable"].startswith("it is not a record of its schema: ")
    assert found[3]["value"]["error_class"] == "TruncatedError"
    status = place.command("status", code=ExitCode.KAFKA).output  # no service has run
    assert (
        "events cannot be counted by transactions and bytes: 6e6f6e7365 is not 00 and a schema id" in status
    )
    with SchemaRegistry(RegistrySettings(url=place.registry_url)) as registry:
        records = Records(registry)
        messages = list(read_topic(place.settings, rows))
        for message, words in (
            (messages[0], "6e6f6e7365 is not 00"),
            (messages[2], "it is not a record of its"),
        ):
            with pytest.raises(UserError) as caught:
                records.value_of(message)
            assert caught.value.message.startswith(
                f"offset {message.offset()} of {rows}, partition 0: {words} "
            )
            assert caught.value.exit_code is ExitCode.DATA


def test_a_raw_record_without_a_place(place: World, tmp_path: Path) -> None:
    place.write(place.topics.raw, (b"nonsense", b"event", None))
    said = place.command("verify", "raw", str(tmp_path), "--epoch", "0", code=7).output
    assert said.startswith(f"error: offset 0 of {place.topics.raw}: b'nonsense' is not a raw key")
    url = f"kafka://{place.settings.bootstrap_servers}/"
    said = place.command("binlog", f"{url}nobody", code=4).output
    assert said == f"error: there is no topic nobody.raw at {place.settings.bootstrap_servers}\n"


def test_a_raw_event_of_which_chunks_are_missing(place: World) -> None:
    place.write(
        place.topics.raw,
        (b"1:0:bin.000001:4", b"first", "0/2"),
        (b"1:0:bin.000001:200", b"another event", None),
    )
    url = f"kafka://{place.settings.bootstrap_servers}/{place.topics.source}"
    said = place.command("binlog", url, code=1).output
    assert "error: 1:0:bin.000001:4 at 0: the last chunks of this event are missing\n" in said


def test_topics_that_are_not_made(place: World, source_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_topics, "_TIMEOUT_S", 1.0)
    with pytest.raises(BrokerError) as caught:
        kafka_topics._wait_for_leaders(connect(place.settings), [f"{source_name}.b", f"{source_name}.a"])
    assert caught.value.message == (
        f"topics {source_name}.a, {source_name}.b were created but have no leader yet"
    )


def test_a_demo_that_stands_still(
    place: World, mysql: MySQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_run, "_STALL_S", 1)
    server = mysql.address
    options = Options(server, place.settings.bootstrap_servers, place.registry_url, 1, tmp_path, stay=False)
    endpoints = Endpoints("demo", server, place.settings.bootstrap_servers, place.registry_url, "latest")
    with Demo(options) as demo, MysqlConnection(mysql.root_address) as connection:
        demo._services = Services({}, tmp_path)
        with pytest.raises(LocalError, match=r"^the pipeline has made no progress for 1 s:\n"):
            demo._run_workload(endpoints, connect(place.settings), connection)
        mysql.execute(f"DROP DATABASE {demo.database}")


def test_a_server_and_what_is_asked_of_it(place: World, mysql: MySQL, tmp_path: Path) -> None:
    url = f"mysql://{mysql.user}:{mysql.password}@{mysql.host}:{mysql.port}"
    shown = f"{mysql.host}:{mysql.port}"
    first, last = mysql.binlog_files[0].name, mysql.binlog_files[-1].name
    said = place.command("binlog", "--after-gtids", "nonsense", f"{url}/", code=2).output
    assert said.startswith("error: --after-gtids for a server of MySQL: 'nonsense' in a GTID set"), said
    said = place.command(
        "binlog", "--raw", "--result-file", f"{tmp_path}/", f"{url}/no.000001", code=3
    ).output
    assert said.startswith(f"error: mysql://{shown} has no log no.000001; it has "), said
    assert last in said
    (tmp_path / first).mkdir()
    said = place.command("binlog", "--raw", "--result-file", f"{tmp_path}/", f"{url}/{first}", code=3).output
    assert said == f"error: {tmp_path / first} cannot be written: Is a directory\n"
    said = place.command("binlog", "--raw", "--result-file", "/proc/no/", f"{url}/{first}", code=3).output
    assert said == f"error: /proc/no/{first} cannot be written: No such file or directory\n"
    place.write(place.topics.raw, (b"1:0:gone.000001:4", b"event", None))
    said = place.command("verify", "raw", url, "--epoch", "0", code=3).output
    assert said == (
        f"error: {shown} no longer has gone.000001, where the topic begins; it has {first} to {last}: "
        "compare with a folder that has a copy of it\n"
    )
    assert mysql.password not in said


def test_a_connection_that_is_gone(mysql: MySQL) -> None:
    address = mysql.address
    with MysqlConnection(address) as connection:
        ((number,),) = [row.values() for row in connection.query("SELECT CONNECTION_ID()")]
        mysql.execute(f"KILL {number}")
        with pytest.raises(LinkLostError) as caught:
            connection.send_and_expect_ok(_COM_PING, b"", "say that we live")
        assert str(caught.value).startswith(f"{address}: ")
    with pytest.raises(LinkLostError) as closed:
        connection.send(_COM_PING, b"")
    assert str(closed.value) == f"{address}: the connection is closed"


def test_a_log_that_cannot_be_read_on(place: World, mysql: MySQL, tmp_path: Path) -> None:
    content = mysql.binlog_files[0].read_bytes()
    damaged = tmp_path / mysql.binlog_files[0].name
    damaged.write_bytes(content + bytes(100))
    code, said = place.service(
        "reader", MILLRACE_FILES=str(damaged), MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY="false"
    )
    assert code == ExitCode.DATA, said
    assert said == (
        f"error: {damaged} at {len(content)}: an event of 0 bytes cannot be, its header has 19: the file is "
        "damaged there. Nothing after that place was written; look at the log there with mysqlbinlog\n"
    )


def test_giving_back_is_interrupted(place: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_settings: object, _tables: object, _say: object, stop: Event) -> list[object]:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        return []

    monkeypatch.setattr("millrace.cli.deadletter.redrive", interrupted)
    said = place.command("deadletter", "redrive", code=130).output
    assert said == "error: interrupted; run it again to resume\n"
