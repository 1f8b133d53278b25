"""The reader and a server that misbehaves: it ends with one line and code 3, or as soon as it is told to."""

import json
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.local import Kafka
from millrace.local.certificates import write_certificates
from millrace.runtime.settings import KafkaSettings
from tests.service_process import wait_for
from tests.topic_reader import TopicReader

from .mysql_server import LOG, MysqlServer, Peer, nobody_accepts
from .processes import Running, run, start, stop

Step = Callable[..., None]
PATIENT = {"MILLRACE_MYSQL_CONNECT_TIMEOUT_S": "3600"}


def settings(kafka: Kafka, source: str, server: MysqlServer) -> dict[str, str]:
    return {
        "MILLRACE_SOURCE": source,
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_REGISTRY_URL": "http://127.0.0.1:1",
        **server.environment,
    }


def reader(environment: dict[str, str]) -> Running:
    return start("-m", "services.reader", settings=environment)


# -- told to stop -----------------------------------------------------------------------------------


def be_silent(self: MysqlServer, *_: object) -> None:
    self.silent()


def drip(self: MysqlServer, peer: Peer, *_: object) -> None:
    """Begin a packet of 64 KiB that does not come to its end."""
    peer.raw(struct.pack("<I", 0xFFFF | peer.sequence << 24))
    self.drip(peer)


def drip_handshake(self: MysqlServer, peer: Peer) -> None:
    peer.raw(b"\x16\x03\x03\x40\x00")
    self.drip(peer)


@pytest.mark.parametrize(
    ("step", "state", "silence"),
    [
        ("greet", "greet", be_silent),
        ("greet", "greet", drip),
        ("start_tls", "tls", be_silent),
        ("start_tls", "tls", drip_handshake),
        ("authenticate", "authenticate", be_silent),
        ("query", "query", drip),
        ("master_status", "catalogue", be_silent),
        ("register", "register", be_silent),
        ("dump", "dump", be_silent),
        ("dump", "dump", drip),
    ],
)
def test_it_stops_whatever_it_waits_for(
    kafka: Kafka, source_name: str, step: str, state: str, silence: Step, tmp_path: Path
) -> None:
    tls = None
    if step == "start_tls":
        write_certificates(tmp_path)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with MysqlServer(tls, **{step: silence}) as server:
        running = reader(settings(kafka, source_name, server) | PATIENT)
        assert server.step(state).wait(60), running.end(1)
        done = stop(running)
    assert (done.code, done.errors) == (0, ""), done
    done.is_well()


def test_it_stops_while_nobody_takes_its_connection(kafka: Kafka, source_name: str) -> None:
    """As behind a firewall that drops packets."""
    with nobody_accepts() as silent, MysqlServer() as server:
        port = {"MILLRACE_MYSQL_PORT": str(silent[1])}
        running = reader(settings(kafka, source_name, server) | PATIENT | port)
        wait_for(lambda: '"connecting"' in running.process.output, running.process)
        done = stop(running)
    assert (done.code, done.errors) == (0, ""), done


# -- answers that only the reader asks for ----------------------------------------------------------

NAMES = ("database", "table", "type", "engine", "collation")


def endless_tables(self: MysqlServer, peer: Peer) -> None:
    peer.columns(NAMES)
    number = 0
    while True:
        number += 1
        peer.row("shop", f"{number:x>200}", "BASE TABLE", "InnoDB", "utf8mb4_0900_ai_ci")


def endless_columns(self: MysqlServer, peer: Peer) -> None:
    peer.columns((*NAMES, "nullable", "charset", "collation", "extra", "preset"))
    while True:
        peer.row("shop", "t", "1", "c", "int", "YES", None, None, "", None)


def nonsense_as_gtids(self: MysqlServer, peer: Peer, sql: str) -> None:
    if "gtid_purged" in sql:
        peer.result(("value",), [("all\x1b[2Jof them",)])
    else:
        self.answer(peer, sql)


def endless_rotations(self: MysqlServer, peer: Peer, wait: bool) -> None:
    while True:
        self.rotate(peer, b"bin.000001")


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            MysqlServer(dump=endless_rotations),
            "events in a row that are in no file",
        ),
        (
            MysqlServer(catalogue_tables=endless_tables),
            "cannot read the catalogue: the definitions of its tables take more than 128 MiB",
        ),
        (
            MysqlServer(catalogue_columns=endless_columns),
            "cannot read the catalogue: the table shop.t has more than 4096 columns",
        ),
        (
            MysqlServer(catalogue_columns=lambda self, peer: self.flood(peer)),
            "it sends a packet that is too large, in answer to: read the catalogue",
        ),
        (
            MysqlServer(dump=lambda self, peer, wait: self.event(peer, b"abc")),
            "an event of 3 bytes came, and the header alone has 19",
        ),
        (
            MysqlServer(dump=lambda self, peer, wait: self.rotate(peer, b"../../etc/passwd")),
            "'../../etc/passwd' as the name of a log file has a slash",
        ),
    ],
    ids=["rotations", "tables", "columns", "packet", "event", "name"],
)
def test_it_refuses(kafka: Kafka, source_name: str, server: MysqlServer, words: str) -> None:
    with server:
        done = run("-m", "services.reader", settings=settings(kafka, source_name, server))
    done.says(3, words)


def test_gtids_that_are_none(kafka: Kafka, source_name: str) -> None:
    with MysqlServer(query=nonsense_as_gtids) as server:
        start = {"MILLRACE_START": "gtid:d808318d-e5b4-11f1-a5c4-02fc00000001:1"}
        done = run("-m", "services.reader", settings=settings(kafka, source_name, server) | start)
    done.says(3, "what it says of its log and its GTIDs cannot be read: ")


def test_a_server_that_behaves(kafka: Kafka, source_name: str) -> None:
    """So that what the others show is not the tests' own doing; its names are as bad as names may be."""
    server = MysqlServer()
    server.tables = [("sh\x1b[2Jop", "t\u202ext", "BASE TABLE", "InnoDB", "utf8mb4_0900_ai_ci")]
    server.column_rows = [("sh\x1b[2Jop", "t\u202ext", "1", "c\x07", "int", "NO", None, None, "", None)]
    with server:
        running = reader(settings(kafka, source_name, server))
        assert server.step("idle").wait(60), running.end(1)
        reader_of_topics = TopicReader(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))

        def is_written() -> bool:
            written = reader_of_topics.messages(f"{source_name}.raw")
            return b"".join(message.value() for message in written) == LOG.read_bytes()[4:]

        wait_for(is_written, running.process, "the log")
        done = stop(running)
    assert (done.code, done.errors) == (0, ""), done
    done.is_well()


def test_doctor_says_it_in_a_line(kafka: Kafka, source_name: str) -> None:
    """And looks at other servers, and the other sides, all the same."""
    garbled = MysqlServer(greet=lambda self, peer: peer.send(b"\x0a8."))
    flooding = MysqlServer(binary_logs=lambda self, peer: self.flood(peer))
    with garbled, flooding:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (garbled, flooding))
        environment = settings(kafka, source_name, garbled)
        environment |= {"MILLRACE_MYSQL_HOST": hosts, "MILLRACE_MYSQL_PORT": ""}
        done = run("-m", "millrace.cli", "doctor", settings=environment)
    assert (done.code, done.errors) == (1, ""), done
    assert "cannot connect: what it sends is not what MySQL's protocol has there" in done.output
    assert "it sends a packet that is too large, in answer to: list the binary logs" in done.output
    assert "\nKafka\n" in done.output, done
    done.is_well()


def test_what_doctor_could_not_check_is_not_well(kafka: Kafka, source_name: str) -> None:
    with MysqlServer(binary_logs=lambda self, peer: self.flood(peer)) as server:
        done = run("-m", "millrace.cli", "doctor", "--json", settings=settings(kafka, source_name, server))
    assert (done.code, done.errors) == (1, ""), done
    report = json.loads(done.output)
    unchecked = {found["check"] for found in report["findings"] if found["level"] == "unchecked"}
    assert {"log_bin", "reader_position"} <= unchecked
    assert report["unchecked"] == len([one for one in report["findings"] if one["level"] == "unchecked"])
    done.is_well()
