"""``millrace state``: what the services know of where they stand, and how to get back what was lost of it."""

import json
from dataclasses import asdict, replace
from typing import Any, Final

import click

from millrace.avro.service_state import DecoderState, ReaderState, Rebuilt, RowMapperState
from millrace.avro.single_object import SingleObjectError
from millrace.cli import SuggestingGroup
from millrace.cli.frame import (
    check_topics,
    command_settings,
    errors_in_words,
    kafka_option,
    source_option,
    topic_options,
)
from millrace.decoder import rebuild as decoder
from millrace.kafka.client import connect
from millrace.kafka.continuity import ContinuityGuard
from millrace.kafka.pause import in_place_of_service
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.state import decoded_state
from millrace.kafka.topics import ensure_topics
from millrace.reader import rebuild as reader
from millrace.rowmapper import rebuild as rowmapper
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import ServiceSettings

State = ReaderState | DecoderState | RowMapperState

_KINDS: Final[dict[str, Any]] = {
    "reader": ReaderState,
    "decoder": DecoderState,
    "rowmapper": RowMapperState,
}
_MODULES: Final[dict[str, Any]] = {"reader": reader, "decoder": decoder, "rowmapper": rowmapper}
_service: Final = click.argument("service", type=click.Choice(list(_KINDS)))


@click.group("state", cls=SuggestingGroup)
def state() -> None:
    """Show where the services stand, or rebuild a state that was lost."""


@state.command("show")
@_service
@source_option
@kafka_option
def show(*, service: str) -> None:
    """Print the state of a service as JSON."""
    configure_logging("CRITICAL")
    with errors_in_words():
        settings = command_settings(ServiceSettings)
        check_topics(settings, settings.names.state)
        found = decoded_state(settings.kafka, settings.source, service, _KINDS[service])
        if found is None:
            raise UserError(
                f"the {service} of {settings.source} has no state: has it ever run?", ExitCode.SETTINGS
            )
        click.echo(json.dumps(asdict(found), default=_spelled, indent=2))


def _spelled(value: object) -> object:
    return value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else str(value)


@state.command("rebuild")
@_service
@source_option
@topic_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def rebuild(*, service: str, yes: bool) -> None:
    """Make the state of a service of what its topics hold.

    For a state that was lost with its topic, or that speaks of records that the topics no longer hold. The
    service is fenced: one that runs waits. The state says then that all is done that the topics
    hold, and of nothing more, so that nothing is written twice.
    """
    configure_logging("CRITICAL")
    with errors_in_words():
        module = _MODULES[service]
        settings = command_settings(module.Settings)
        topics = settings.names
        ours = topics.of_service(service)
        check_topics(settings, ours.input or ours.own)
        admin = connect(settings.kafka)
        ensure_topics(admin, settings.topics, {**ours.kinds, topics.state: "state"}, captured=ours.captured)
        click.echo(f"taking over from the {service}: one that runs waits")

        def write() -> None:
            with TransactionalProducer(
                settings.kafka, settings.source, service, role="state rebuild"
            ) as producer:
                (stored,) = producer.open()
                value = None if stored is None else stored.value
                producer.commit(value)
                with producer.signing():
                    rebuilt = module.rebuild(settings, producer, click.echo)
                    _say(rebuilt, value)
                    if not yes:
                        click.confirm("Write this state?", abort=True)
                rebuilt.write_missing(value)
                guard = ContinuityGuard(settings.kafka, admin, topics, service)
                input_end = 0 if isinstance(rebuilt.state, ReaderState) else rebuilt.state.input_end
                after = replace(rebuilt.state, continuity=guard.adopt(input_end))
                producer.commit(after.to_bytes(), others=list(rebuilt.notes.items()))

        in_place_of_service(write)
        click.echo(f"done; start the {service}")


def _say(rebuilt: Rebuilt[Any], stored: bytes | None) -> None:
    """Say where the state stands now, and where it stood."""
    click.echo(f"the state that the topics give stands at {_place(rebuilt.state)}")
    try:
        before = None if stored is None else type(rebuilt.state).from_bytes(stored)
    except SingleObjectError as error:
        click.echo(f"the state that is there cannot be read: {error}")
    else:
        click.echo("there is none now" if before is None else f"the one that is there, at {_place(before)}")
    for remark in rebuilt.remarks:
        click.echo(remark)


def _place(found: State) -> str:
    if isinstance(found, ReaderState):
        return found.place.with_epoch()
    return f"offset {found.place[0]} of its input"
