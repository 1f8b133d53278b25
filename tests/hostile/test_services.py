"""The services on logs that unpack to a gigabyte: dead letters and bounded memory, no end."""

import time
from pathlib import Path
from typing import Final

import pytest

from millrace.local import Kafka, Registry
from millrace.runtime.settings import KafkaSettings
from tests.service_process import source_environment
from tests.topic_reader import TopicReader
from tests.unit.binlog_command.made_logs import MadeLog

from .bombs import MARIADB, TABLE, compressed_query, compressed_rows, file_of, transaction
from .processes import HANGS_S, MEMORY_MB, start, stop

GIGABYTE: Final = 1 << 30


@pytest.mark.parametrize("kind", ["statement", "rows"])
def test_what_unpacks_from_little(
    kind: str, kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path
) -> None:
    bomb = [compressed_query(GIGABYTE)] if kind == "statement" else [TABLE, compressed_rows(GIGABYTE)]
    path = tmp_path / "bin.000001"
    path.write_bytes(file_of(transaction(MadeLog(MARIADB), *bomb)))
    settings = source_environment(kafka, source_name, registry)
    running = [
        start(
            "-m",
            "services.reader",
            settings=settings | {"MILLRACE_FILES": str(path), "MILLRACE_FOLLOW": "true"},
        ),
        start("-m", "services.decoder", settings=settings),
        start("-m", "services.rowmapper", settings=settings),
    ]
    until = time.monotonic() + HANGS_S
    reader = TopicReader(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
    while not reader.messages(f"{source_name}.deadletter") and time.monotonic() < until:
        time.sleep(0.5)
    ended = [stop(one) for one in running]
    for one in ended:
        assert one.code == 0, one
        assert one.peak_mb < MEMORY_MB, one
        assert "Traceback" not in one.output + one.errors
    assert "MILLRACE_ROWS_UNPACKED_MIB allows" in ended[2].output
