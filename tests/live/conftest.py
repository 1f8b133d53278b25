"""All tests of this folder use real servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.kafka.client import AdminClient, connect
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.local.processes import release_port, reserve_port
from millrace.runtime.settings import KafkaSettings

from .rows_world import RowsWorld


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "live" in item.path.parts:
            item.add_marker(pytest.mark.live)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port on which nobody listens, and that nothing else takes while the test runs."""
    port = reserve_port()
    yield port
    release_port(port)


@pytest.fixture
def settings(kafka: Kafka) -> KafkaSettings:
    """How a service finds Kafka; one that is fenced does not wait."""
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, fenced_wait_s=0)


@pytest.fixture
def admin(settings: KafkaSettings) -> AdminClient:
    return connect(settings)


@pytest.fixture
def world(
    kafka: Kafka, registry: Registry, database: MySQL | MariaDB, source_name: str, tmp_path: Path
) -> Iterator[RowsWorld]:
    """A source with a database of its own, on each kind of server."""
    with RowsWorld(kafka, registry, database, source_name, tmp_path).with_database() as made:
        yield made
