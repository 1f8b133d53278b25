"""A table whose definition is larger than a record may be: it waits alone, and no service stops."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.avro.service_state import RowMapperState
from millrace.kafka.state import read_state
from millrace.local import Kafka, MySQL, Registry

from .rows_world import SERVICES, RowsWorld, without_column_names

pytestmark = pytest.mark.timeout(600)

CHANCE = random.Random(7)
SIGNS = "".join(map(chr, range(0x4E00, 0x9FA0)))


def columns(count: int, prefix: str) -> list[str]:
    """Columns of 23 KB each, which nothing can compress by much."""
    found = []
    for number in range(count):
        members = ",".join(f"'{''.join(CHANCE.choices(SIGNS, k=255))}'" for _ in range(30))
        found.append(f"ADD COLUMN {prefix}{number:03d} ENUM({members})")
    return found


@pytest.fixture
def world(
    kafka: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> Iterator[RowsWorld]:
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as made:
        yield made


def write(world: RowsWorld, *statements: str) -> None:
    """Run statements, then write a row of another table and wait for it."""
    with world.server.connect(database=world.database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        cursor.execute("INSERT INTO other () VALUES ()")
        cursor.execute("SELECT COUNT(*) FROM other")
        ((count,),) = cursor.fetchall()
    world.wait_for_row("other", count)


def reasons(world: RowsWorld) -> dict[str, str]:
    """Tables that are quarantined, and why."""
    state = read_state(world.settings, world.source, "rowmapper")
    assert state is not None
    assert state.value is not None
    return {entry.table: entry.error for entry in RowMapperState.from_bytes(state.value).quarantined}


@pytest.mark.slow
def test_a_definition_that_no_record_takes(world: RowsWorld) -> None:
    """Read at the start, and grown while the services run."""
    create = "CREATE TABLE {} (id INT PRIMARY KEY AUTO_INCREMENT)"
    with without_column_names(world.server):
        world.server.execute(
            f"USE {world.database}",
            *map(create.format, ("other", "early", "grown")),
            *(f"ALTER TABLE early {', '.join(columns(170, prefix))}" for prefix in "abc"),
        )
        with world.services(*SERVICES) as services:
            world.wait_for_start()
            write(world, "INSERT INTO early () VALUES ()", "INSERT INTO grown () VALUES ()")
            assert reasons(world).keys() == {"early"}
            for prefix in "abc":
                write(world, f"ALTER TABLE grown {', '.join(columns(40, prefix))}")
            write(world, "INSERT INTO grown () VALUES ()")
            found = reasons(world)
            assert found.keys() == {"early", "grown"}
            assert all("it is too large: more than 1,000,000 bytes" in reason for reason in found.values())
            assert all(service.poll() is None for service in services)
    assert len(world.rows("grown")) == 1
