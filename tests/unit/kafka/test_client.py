"""Configuration of the Kafka clients, and Kafka's errors in words."""

import logging
import threading
from concurrent.futures import Future
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pydantic import SecretStr

from millrace.kafka import client, inspect, read
from millrace.kafka.client import KAFKA_LOG, client_config, connect, consumer_config, producer_config
from millrace.kafka.errors import BrokerError, FencedError, answer_of, is_passing, translated
from millrace.kafka.read import arrived, source_topics, topic_names
from millrace.runtime.errors import StopRequestedError, UserError, stop_of_service
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from tests.fake_broker import Broker, FakeAdmin

PLAIN = KafkaSettings(bootstrap_servers="a:1,b:2")
SECURE = KafkaSettings(
    bootstrap_servers="a:1",
    security_protocol="SASL_SSL",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username="user",
    sasl_password=SecretStr("sasl secret"),
    ssl_ca_location=Path("/ca.pem"),
    ssl_certificate_location=Path("/cert.pem"),
    ssl_key_location=Path("/key.pem"),
    ssl_key_password=SecretStr("key secret"),
)


def test_plain() -> None:
    config = client_config(PLAIN)
    assert config["bootstrap.servers"] == "a:1,b:2"
    assert config["security.protocol"] == "PLAINTEXT"
    assert not [name for name in config if name.startswith(("sasl.", "ssl."))]


def test_tls_and_sasl() -> None:
    config = client_config(SECURE)
    assert {name: value for name, value in config.items() if name.startswith(("sasl.", "ssl."))} == {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "user",
        "sasl.password": "sasl secret",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/cert.pem",
        "ssl.key.location": "/key.pem",
        "ssl.key.password": "key secret",
    }


def test_a_consumer_reads_committed_records_and_never_jumps() -> None:
    config = consumer_config(PLAIN, "group")
    assert config["isolation.level"] == "read_committed"
    assert config["enable.auto.commit"] is False
    assert config["auto.offset.reset"] == "error"


class Client:
    """A consumer that notes what it is asked for, and has nothing but what comes while it is waited for."""

    def __init__(self, there: list[str], later: list[str]) -> None:
        self.asked: list[tuple[int, float]] = []
        self._there, self._later = there, later

    def consume(self, count: int, timeout_s: float) -> list[str]:
        self.asked.append((count, timeout_s))
        return self._later if timeout_s else self._there


def test_nobody_waits_for_a_batch_to_be_full() -> None:
    full, idle = Client(["a"], []), Client([], ["b"])
    assert arrived(full, 1000, 0.5) == ["a"]  # type: ignore[arg-type, comparison-overlap]
    assert full.asked == [(1000, 0)]
    assert arrived(idle, 1000, 0.5) == ["b"]  # type: ignore[arg-type, comparison-overlap]
    assert idle.asked == [(1000, 0), (1, 0.5)]


def test_the_end_of_a_topic_is_not_waited_for_as_what_may_come_is() -> None:
    waits = [consumer_config(PLAIN, "group", follow=follow)["fetch.wait.max.ms"] for follow in (False, True)]
    assert waits[0] < waits[1]


def test_reaching_a_cluster_does_not_list_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin(FakeAdmin):
        def list_topics(self, *_: Any, **__: Any) -> Any:
            raise AssertionError

    monkeypatch.setattr(client, "AdminClient", lambda *_, **__: Admin(Broker()))
    assert isinstance(client.connect(PLAIN), Admin)


def test_a_producer_is_transactional_and_waits_for_all_replicas() -> None:
    config = producer_config(PLAIN, "millrace-reader-shop")
    assert config["transactional.id"] == "millrace-reader-shop"
    assert config["acks"] == "all"
    assert config["delivery.timeout.ms"] < config["transaction.timeout.ms"] == 30_000


def words(error: KafkaError, doing: str) -> str:
    """Return what a user reads."""
    try:
        with translated(doing):
            raise KafkaException(error)
    except (BrokerError, FencedError) as translation:
        return f"{type(translation).__name__}: {translation.message}"


@pytest.mark.parametrize(
    "code", [KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED]
)
def test_fencing_is_told_apart(code: int) -> None:
    assert words(KafkaError(code), "committing") == "FencedError: another process took over while committing"


def test_a_cluster_out_of_reach() -> None:
    told = words(KafkaError(KafkaError._TRANSPORT, "what Kafka says"), "committing")
    assert told.startswith(
        "BrokerError: Kafka cannot be reached while committing: what Kafka says; check that"
    )


def test_no_answer_at_all() -> None:
    with pytest.raises(BrokerError) as raised, translated("looking up topics"):
        answer_of(Future[int](), 0.01)
    assert str(raised.value).startswith(
        "Kafka cannot be reached while looking up topics: no answer within 0.01 s; check that"
    )


def test_a_service_that_is_told_to_stop_does_not_wait_for_an_answer() -> None:
    def wait() -> None:
        stop = threading.Event()
        stop_of_service.set(stop)
        stop.set()
        with pytest.raises(StopRequestedError):
            answer_of(Future[int](), 3600)

    copy_context().run(wait)


def test_brokers_that_have_gone_since_the_connection_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_TIMEOUT_S", 0.1)
    gone = AdminClient({"bootstrap.servers": "127.0.0.1:1"}, logger=KAFKA_LOG)
    for listing in (lambda: topic_names(gone), lambda: source_topics(gone, "shop")):
        with pytest.raises(BrokerError, match=r"^Kafka cannot be reached while listing topics: "):
            listing()


def test_a_refusal_names_the_error() -> None:
    told = words(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no"), "reading shop.raw")
    assert told == "BrokerError: Kafka refuses reading shop.raw: no (TOPIC_AUTHORIZATION_FAILED)"


def test_which_errors_pass() -> None:
    assert is_passing(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert not is_passing(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


def test_records_that_kafka_did_not_take() -> None:
    told = words(KafkaError(KafkaError._INCONSISTENT, "6 message(s) failed delivery"), "ending")
    assert told == (
        "BrokerError: Kafka did not take all records while ending; its brokers' logs say why: a full disk?"
    )


def test_what_a_cluster_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.kafka.inspect._TIMEOUT_S", 0.1)
    admin = AdminClient({"bootstrap.servers": "127.0.0.1:1"}, logger=KAFKA_LOG)
    refusals: list[str] = []
    assert inspect._configs(admin, [[ConfigResource(ResourceType.BROKER, "1")]], refusals) == {}
    assert inspect._topic_operations(admin, ["shop.raw"], refusals) == {}
    assert refusals == ["settings of 1: no answer within 0.1 s", "rights on shop.raw: no answer within 0.1 s"]


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


@pytest.mark.parametrize(("level", "shown"), [("INFO", ["ERROR"]), ("DEBUG", ["DEBUG", "ERROR"])])
def test_what_librdkafka_tries_again_is_a_debug_line(
    caplog: pytest.LogCaptureFixture, level: str, shown: list[str]
) -> None:
    with caplog.at_level(level, KAFKA_LOG.name):
        KAFKA_LOG.log(
            logging.WARNING,
            "GETPID [millrace#producer-1] [thrd:main]: Failed to acquire transactional PID from broker "
            "TxnCoordinator/1: Broker: Coordinator load in progress: retrying",
        )
        KAFKA_LOG.error("FAIL [millrace#producer-1] [thrd:x]: Connect to x failed: Connection refused")
    assert [record.levelname for record in caplog.records] == shown
