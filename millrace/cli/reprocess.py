"""``millrace reprocess``: events and rows are made again from the raw topic, by the services as they are now.

The decoder's state is cleared, so that it begins at the head of the raw topic. The row mapper's is set to the
end of the events topic, after which the new events will lie. Then the records that the topics of both had
are deleted. The topics stay, with their settings, ACLs and offsets: consumers resume at the new records. What
the states were does not matter, so that those of another version need not be readable.

Both services are fenced before anything is written, and what is deleted ends where the topics ended then.
Each state is written twice: first it says that this is in progress, which no service starts on, then where
the service begins. So it may be interrupted anywhere: one service at least does not start until it was run
again to its end.
"""

from contextlib import suppress

import click

from millrace.avro.service_state import TABLE_TOPIC_PREFIX, DecoderState, RowMapperState
from millrace.avro.single_object import SingleObjectError
from millrace.avro.snapshots import MERGED_KEY
from millrace.cli.frame import (
    check_topics,
    command_settings,
    errors_in_words,
    kafka_option,
    source_option,
)
from millrace.contract import Topics, is_of_rows
from millrace.kafka.client import AdminClient, connect
from millrace.kafka.continuity import ContinuityGuard
from millrace.kafka.errors import FencedError
from millrace.kafka.pause import in_place_of_service
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import held_offsets, read_topic, source_topics
from millrace.kafka.state import read_state
from millrace.kafka.topics import delete_records
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import ServiceSettings


@click.command("reprocess")
@source_option
@kafka_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def reprocess(*, yes: bool) -> None:
    """Make decoder and row mapper write events and rows again from the raw topic.

    All records of {source}.events, .transactions, .ddl, .deadletter and of the row topics are deleted, and
    both services begin at the head of {source}.raw, which must be whole. Consumers get all changes once more.
    The reader may run. The other two are fenced: one that runs waits for the end of this.
    What they read by MILLRACE_INPUT_SOURCE, the topics of another source, stays.
    """
    configure_logging("CRITICAL")  # who is fenced is said in the error
    with errors_in_words():
        settings = command_settings(ServiceSettings)
        topics = settings.names
        check_topics(settings, topics.state)
        admin = connect(settings.kafka)
        _check_origin(settings, admin)
        check_topics(settings, topics.raw)
        raw = held_offsets(admin, {topics.raw: 1})[topics.raw, 0]
        if raw.start > 0:
            raise UserError(
                f"records 0 to {raw.start - 1} of {topics.raw} were deleted: events and rows that were made "
                "from them could not be made again. Nothing was changed",
                ExitCode.DATA,
            )
        written = _written(topics, source_topics(admin, settings.source))
        held = held_offsets(admin, written)
        delete_records(admin, {partition: offsets.start for partition, offsets in held.items()})
        count = sum(map(len, held.values()))
        click.echo(
            f"{len(written)} topics of {settings.source} hold {count} records of decoder and row mapper"
        )
        if not yes:
            click.confirm(f"Delete them, to be written again from {topics.raw}?", abort=True)
        click.echo("taking over from decoder and row mapper: one that runs waits")
        try:
            in_place_of_service(lambda: _begin_again(settings, admin, topics, written))
        except FencedError as error:
            raise UserError(
                f"{error.message}. Run 'millrace reprocess' again before that one", ExitCode.FENCED
            ) from error
        click.echo(f"done; decoder and row mapper take {len(raw)} raw records again")


def _check_origin(settings: ServiceSettings, admin: AdminClient) -> None:
    """Raise UserError where the decoder has read another raw topic, as far as its state can be read."""
    stored = read_state(settings.kafka, settings.source, "decoder")
    with suppress(SingleObjectError):
        if stored is not None and stored.value is not None:
            continuity = DecoderState.from_bytes(stored.value).continuity
            ContinuityGuard(settings.kafka, admin, settings.names, "decoder").check_origin(continuity)


def _written(topics: Topics, partitions: dict[str, int]) -> dict[str, int]:
    """Choose the topics that decoder and row mapper write, except the state."""
    shared = {topics.events, topics.transactions, topics.ddl, topics.deadletter}
    return {name: count for name, count in partitions.items() if name in shared or is_of_rows(name)}


def _begin_again(
    settings: ServiceSettings, admin: AdminClient, topics: Topics, written: dict[str, int]
) -> None:
    """Delete what both services have written, and write states that let them begin again."""
    kafka, role = settings.kafka, "reprocess"
    with (
        TransactionalProducer(kafka, settings.source, "decoder", role=role) as decoder,
        TransactionalProducer(kafka, settings.source, "rowmapper", role=role) as rowmapper,
    ):
        decoder.open()
        rowmapper.open()
        ends = {partition: offsets.stop for partition, offsets in held_offsets(admin, written).items()}
        end_of_events = ends.get((topics.events, 0), 0)
        notes = [
            (key, None)
            for key in {message.key() for message in read_topic(kafka, topics.state)}
            if isinstance(key, bytes) and (key.startswith(TABLE_TOPIC_PREFIX) or key == MERGED_KEY)
        ]
        for reprocessing in (True, False):
            rowmapper.commit(
                RowMapperState(end_of_events, reprocessing=reprocessing).to_bytes(), others=notes
            )
            decoder.commit(DecoderState(0, reprocessing=reprocessing).to_bytes())
            if reprocessing:
                delete_records(admin, ends)
