"""Commands that take names: one that stands for nothing, or that cannot be done, has a line and a code."""

from collections.abc import Iterator

import click
import pytest
from confluent_kafka import Producer

from millrace.cli import main
from millrace.kafka.client import connect
from millrace.kafka.topics import delete_records
from millrace.local import Kafka, MySQL, Registry

from .rows_world import RowsWorld


@pytest.fixture(scope="module")
def world(
    kafka: Kafka, registry: Registry, mysql: MySQL, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RowsWorld]:
    """A source with a table ``t``, one that was dropped, and one that is not selected; nothing runs."""
    world = RowsWorld(kafka, registry, mysql, "names", tmp_path_factory.mktemp("names"))
    with world.with_database() as world:
        world.environment["MILLRACE_REPLICATE_IGNORE_TABLE"] = "names.kept"
        world.environment["MILLRACE_KAFKA_FENCED_WAIT_S"] = "0"
        with world.service("run"):
            world.wait_for_start()
            world.server.execute(
                "CREATE TABLE names.dropped (id INT PRIMARY KEY)",
                "DROP TABLE names.dropped",
                "CREATE TABLE names.kept (id INT PRIMARY KEY)",
                "CREATE TABLE names.t (id INT PRIMARY KEY)",
                "INSERT INTO names.t VALUES (1)",
            )
            world.wait_for_row("t")
        yield world


NOSUCH = "names.nosuch"
CASES: list[tuple[int, list[str], str]] = [
    # What does not exist.
    (2, ["snapshot", NOSUCH], "names.nosuch: there is no such table"),
    (2, ["verify", "rows", "--idle", NOSUCH], "names.nosuch cannot be compared: there is no such table"),
    (2, ["verify", "raw", "/nosuch"], "/nosuch is neither a folder"),
    (2, ["verify", "raw", "--epoch", "7", "{log}"], "holds no events of epoch 7"),
    (2, ["resume", NOSUCH], "names.nosuch is not a quarantined table"),
    (2, ["deadletter", "redrive", NOSUCH], "names.nosuch is not a quarantined table"),
    (2, ["deadletter", "discard", "--yes", NOSUCH], "names.nosuch is not a quarantined table"),
    (2, ["deadletter", "show", "999"], "no dead letter begins at offset 999"),
    (2, ["deadletter", "list", "--table", NOSUCH], "names.nosuch: neither the schema history nor a topic"),
    (2, ["schema", "show", NOSUCH], "names.nosuch, as of now: nothing is known about it"),
    (2, ["schema", "diff", NOSUCH, "--from", "a:4"], "the schema history has no table names.nosuch"),
    (2, ["schema", "rebuild", "--definitions", "/nosuch"], "'/nosuch' does not exist"),
    (1, ["topic", "names.nosuch.t"], "there is no topic names.nosuch.t"),
    (4, ["source", "reset", "nosuch", "--to", "latest"], "there is no topic nosuch.state"),
    (2, ["source", "reset", "names", "--to", "nosuch:4"], "nosuch is not among"),
    (4, ["state", "show", "reader", "--source", "nosuch"], "there is no topic nosuch.state"),
    (4, ["state", "rebuild", "reader", "--source", "nosuch"], "there is no topic nosuch.raw"),
    (4, ["status", "nosuch"], "no service of nosuch has run"),
    (4, ["status", "names", "nosuch"], "no service of nosuch has run"),
    (4, ["reprocess", "--source", "nosuch"], "there is no topic nosuch.state"),
    (3, ["binlog", "/nosuch"], "/nosuch cannot be read"),
    # Patterns that match nothing.
    (2, ["snapshot", "names.no*"], "names.no*: there is no such table"),
    (2, ["snapshot", "--exclude", "names.*", "names.*"], "names.*: MILLRACE_REPLICATE_…"),
    # What exists, and cannot be done.
    (2, ["snapshot", "names.kept"], "names.kept: MILLRACE_REPLICATE_…"),
    (2, ["verify", "rows", "--idle", "names.kept"], "names.kept cannot be compared: MILLRACE_REPLICATE_…"),
    (2, ["pause", "t"], "t is not DATABASE.TABLE"),
    (2, ["resume", "names.t"], "names.t is not a quarantined table"),
    (2, ["deadletter", "redrive", "names.t"], "names.t is not a quarantined table"),
    (2, ["deadletter", "discard", "--yes", "names.t"], "names.t is not a quarantined table"),
    (2, ["schema", "show", "names.dropped"], "names.dropped, as of now: there is no such table"),
    (2, ["schema", "show", "t"], "t is not DATABASE.TABLE"),
]
"""Exit code, arguments, and how the line begins, or what it has."""


@pytest.mark.parametrize(("code", "arguments", "line"), CASES, ids=str)
def test_what_stands_for_nothing_or_cannot_be_done(
    world: RowsWorld, code: int, arguments: list[str], line: str
) -> None:
    log = str(world.server.binlog_files[0].parent)
    done = world.command(*(each.format(log=log) for each in arguments), code=code, input="")
    said = [each for each in done.stderr.splitlines() if each.lower().startswith("error: ")]
    assert len(said) == 1, done.stderr
    assert line in said[0]


def test_dead_letters_that_were_deleted_are_said(world: RowsWorld) -> None:
    topic = world.topics.deadletter
    producer = Producer({"bootstrap.servers": world.settings.bootstrap_servers})
    producer.produce(topic, b"nothing")
    assert producer.flush(60) == 0
    delete_records(connect(world.settings), {(topic, 0): 1})
    done = world.command("deadletter", "list")
    assert (done.stdout, done.stderr) == (
        "",
        f"records before offset 1 of {topic} were deleted: not listed\n",
    )


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The commands that take the name of a table, topic, source, service, file or dead letter."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            if name not in {"job", "local"}:  # jobs have a table of their own, and local takes no such names
                yield from commands(command, *path, name)
        elif (
            command is not None
            and not command.hidden
            and any(isinstance(each, click.Argument) or each.name == "table" for each in command.params)
        ):
            yield (*path, name)


def test_every_command_that_takes_names_is_tried() -> None:
    tried = [tuple(arguments) for _, arguments, _ in CASES]
    missing = [path for path in commands(main) if not any(one[: len(path)] == path for one in tried)]
    assert missing == []
