"""What a job takes from its settings before Spark runs: cores, memory, where its input begins, its folder."""

import logging
import re
import stat
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import click
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr
from pyspark import SparkContext
from pyspark.errors import PySparkException

from millrace.cli import main
from millrace.runtime.errors import SettingsError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from spark_jobs.common.job import _bound, _joined, _settings, errors_in_words
from spark_jobs.common.job import errors_in_words as job_errors
from spark_jobs.common.kafka import kafka_options, parse_bound
from spark_jobs.common.session import SparkSettings, Steps, _conf, _sockets
from spark_jobs.loop_detection import _servers


@pytest.fixture(autouse=True)
def started_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_jvm", None)  # that of other tests has settings already
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("MILLRACE_REGISTRY_URL", "http://registry:8081")
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")


def test_cores_and_heap_follow_what_the_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SPARK_CORES", "3")
    monkeypatch.setenv("MILLRACE_SPARK_MEMORY_MIB", "6145")
    conf = _conf(None, _settings(["shop"], None, None).spark)
    assert conf.get("spark.master") == "local[3]"
    assert conf.get("spark.driver.memory") == "3072m"


def test_without_limits_all_cores_and_a_heap_of_1_gib_are_used() -> None:
    conf = _conf(None, SparkSettings())
    assert conf.get("spark.master") == "local[*]"
    assert conf.get("spark.driver.memory") == "1024m"


def test_workers_are_started_by_this_package_where_executors_have_it() -> None:
    name = "spark.python.daemon.module"
    for master in (None, "local[2]", "k8s://https://kubernetes.default.svc"):
        assert _conf(master, SparkSettings()).get(name) == "spark_jobs.common.worker_daemon"
    assert _conf("spark://master:7077", SparkSettings()).get(name) is None


def test_workers_on_this_machine_are_reached_by_sockets_in_a_folder_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = _conf("local[2]", SparkSettings())
    with _sockets(conf):
        folder = Path(conf.get("spark.python.unix.domain.socket.dir") or "")
        assert stat.filemode(folder.stat().st_mode) == "drwx------"
        assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert not folder.exists()
    too_long = tmp_path / ("x" * 60)
    too_long.mkdir()
    for master, temporary in ("spark://master:7077", tempfile.gettempdir()), ("local[2]", str(too_long)):
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        conf = _conf(master, SparkSettings())
        with _sockets(conf):
            assert conf.get("spark.python.unix.domain.socket.enabled") is None


def test_another_master_keeps_the_heap_of_the_driver() -> None:
    conf = _conf("spark://master:7077", SparkSettings(cores=3, memory_mib=4096))
    assert conf.get("spark.master") == "spark://master:7077"
    assert conf.get("spark.driver.memory") == "2048m"


def test_spark_submit_has_said_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    conf = _conf(None, SparkSettings(cores=3, memory_mib=4096))
    assert conf.get("spark.driver.memory") is None


def test_workers_have_one_arena_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "spark.executorEnv.MALLOC_ARENA_MAX"
    assert _conf(None, SparkSettings()).get(name) == "1"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    assert _conf(None, SparkSettings()).get(name) == "1"


def test_the_folder_of_many_sources_is_one_that_file_systems_take() -> None:
    many = [f"source-{number}" for number in range(60)]
    assert _joined(many[:2]) == "source-0+source-1"
    assert len(_joined(many)) == 200
    assert _joined(many) != _joined(many[:-1])


@pytest.mark.parametrize(("variable", "value"), [("CORES", "0"), ("CORES", "two"), ("MEMORY_MIB", "1000")])
def test_wrong_settings_are_said(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(f"MILLRACE_SPARK_{variable}", value)
    with pytest.raises(SettingsError, match=f"MILLRACE_SPARK_{variable} is wrong: expected "):
        _settings(["shop"], None, None)


@pytest.mark.parametrize(
    ("text", "ago"),
    [("90m", timedelta(minutes=90)), ("24h", timedelta(hours=24)), ("7d", timedelta(days=7))],
)
def test_a_bound_can_be_how_long_ago(text: str, ago: timedelta) -> None:
    before = datetime.now(UTC) - ago
    bound = parse_bound(text)
    assert isinstance(bound, datetime)
    assert before <= bound <= datetime.now(UTC) - ago


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("0", 0),
        ("2026", 2026),
        ("20261322", 20_261_322),
        ("99991231", 99_991_231),
        ("offset:20261122", 20_261_122),
    ],
)
def test_a_bound_can_be_an_offset(text: str, offset: int) -> None:
    assert parse_bound(text) == offset


@pytest.mark.parametrize("text", ["20261122", "202611221000", "20261122100000"])
def test_digits_that_read_as_a_date_are_no_offset_by_accident(text: str) -> None:
    with pytest.raises(SettingsError, match=f"; if it is an offset, write offset:{text}"):
        _bound("--from", text)


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        (
            "…\n\tat x.y(Z.java:1)\nCaused by: org.apache.kafka.common.errors.TimeoutException: Timed out",
            "Kafka stopped answering while analytics ran (TimeoutException: Timed out); ",
            ExitCode.KAFKA,
        ),
        (
            "Traceback\n  File x\nmillrace.kafka.errors.BrokerError: shop.raw cannot be read: no answer\n at",
            "Kafka stopped answering while analytics ran (shop.raw cannot be read: no answer)",
            ExitCode.KAFKA,
        ),
        (
            "Traceback\nmillrace.kafka.errors.InputLostError: records 1 to 3 of shop.raw were deleted",
            "records were deleted while analytics read them (records 1 to 3 of shop.raw were deleted)",
            ExitCode.DATA,
        ),
        (
            "Traceback\nmillrace.spark.archive.ArchiveError: a/1.parquet cannot be read; restore it\n at",
            "a/1.parquet cannot be read; restore it",
            ExitCode.DATA,
        ),
        (
            "[PYTHON_DATA_SOURCE_ERROR]\nmillrace.runtime.errors.UserError: topic a.raw does not exist\n at",
            "topic a.raw does not exist",
            ExitCode.DATA,
        ),
        (
            "java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 60000 ms\n at",
            "Kafka stopped answering while analytics ran (Cannot fetch record for offset 7 in 60000 ms)",
            ExitCode.KAFKA,
        ),
        (
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost because …",
            "records were deleted while analytics read them ([KAFKA_DATA_LOSS.COULD",
            ExitCode.DATA,
        ),
        (
            "Job aborted.\n\tat org\nCaused by: java.io.IOException: No space left on device\n\tat java",
            "a disk was full while analytics ran (Caused by: java.io.IOException: No space",
            ExitCode.OUTPUT,
        ),
    ],
)
def test_what_becomes_of_kafka_is_told(
    text: str, words: str, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, errors_in_words("analytics"):
        raise PySparkException(text)
    assert ended.value.code == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {words}")


@pytest.mark.parametrize("text", ["h", "-1h", "1w", "1h ago", "999999999d", "9" * 30 + "h"])
def test_what_is_no_bound(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bound(text)


@pytest.mark.parametrize(
    "options",
    [
        ["table_state", "--table", "shop.t", "--at", "tomorrow"],
        ["table_state", "--table", "t"],
        ["row_history", "--table", "shop.t", "--key", "5"],
        ["flashback", "--after", "tomorrow"],
        ["flashback", "--gtids", "x"],
        ["flashback", "--table", "shop.t"],
        ["flashback", "--key", "id=1"],
        ["reprocess", "--gtids", "x"],
        ["reprocess", "--catalog", "lake"],
        ["reprocess", "--follow"],
        ["reprocess", "--follow", "--format", "iceberg", "--definitions", __file__],
        ["reprocess", "--into", "events", "--definitions", __file__],
    ],
)
def test_options_are_read_before_anything_is_asked(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_jobs.common.job._topics", lambda _: pytest.fail("Kafka was asked"))
    done = CliRunner().invoke(main, ["job", *options, "--source", "shop"])
    assert (done.exit_code, len(done.stderr.splitlines())) == (ExitCode.SETTINGS, 1), done.stderr


def test_the_ends_of_a_topic() -> None:
    """Nothing is read from its latest record on, or up to its earliest."""
    assert [_bound("--from", "earliest"), _bound("--to", "latest")] == [None, None]
    assert [_bound("--from", "latest"), _bound("--to", "earliest")] == [sys.maxsize, 0]


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


@pytest.mark.parametrize(
    ("job", "options"),
    [
        ("conformance", ["--after", "x"]),
        ("flashback", ["--after", "1h"]),
        ("row_history", ["--table", "shop.orders", "--key", "id=5"]),
        ("table_state", ["--table", "shop.orders"]),
    ],
)
def test_jobs_on_tables_read_one_source(job: str, options: list[str]) -> None:
    """It is said before Kafka is looked for."""
    done = CliRunner().invoke(main, ["job", job, "--source", "north", "--source", "south", *options])
    assert done.exit_code == ExitCode.SETTINGS
    assert done.stderr == f"error: --source is north, south: {job} reads one source\n"
    explained = CliRunner().invoke(main, ["job", job, "--help"]).stdout
    assert re.search(r"--source TEXT +Source to read\. ", explained)


def test_server_ids() -> None:
    with pytest.raises(click.BadParameter) as caught:
        _servers(click.Context(main), click.Option(["--servers"]), "1,b")
    assert caught.value.message == "'1,b': expected server ids separated by commas, as 1,2"


def test_a_bug_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, job_errors("analytics"):
        raise KeyError("surprise")
    assert caught.value.code == ExitCode.BUG
    said = capsys.readouterr().err
    assert said.endswith("error: analytics failed because of a bug (KeyError), see the traceback above\n")
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


def test_how_much_was_read_and_how_fast_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Steps(cast("Any", None), "reprocess").say_speed(3_000_000, 600_000_000, 20)
    assert capsys.readouterr().err == "reprocess: 3,000,000 events, 600.0 MB: 150,000 events/s, 30.0 MB/s\n"


def test_a_private_key_as_java_reads_it(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    forms = serialization.PrivateFormat
    plain = key.private_bytes(serialization.Encoding.PEM, forms.PKCS8, serialization.NoEncryption())
    secret = serialization.BestAvailableEncryption(b"secret")

    def given(form: serialization.PrivateFormat, encryption: Any, password: str | None) -> str:
        place = tmp_path / "key.pem"
        place.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
        settings = KafkaSettings(
            bootstrap_servers="127.0.0.1:9092",
            security_protocol="SSL",
            ssl_certificate_location=place,
            ssl_key_location=place,
            ssl_key_password=password and SecretStr(password),
        )
        return kafka_options(settings)["ssl.keystore.key"]

    assert given(forms.PKCS8, serialization.NoEncryption(), None) == plain.decode()
    assert given(forms.TraditionalOpenSSL, serialization.NoEncryption(), "unused") == plain.decode()
    assert given(forms.PKCS8, secret, "secret") == plain.decode()
    for password in (None, "wrong"):
        with pytest.raises(SettingsError, match="MILLRACE_KAFKA_SSL_KEY_PASSWORD is not its password"):
            given(forms.PKCS8, secret, password)
