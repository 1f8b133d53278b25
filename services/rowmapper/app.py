"""The row mapper's start: topics, registry, catalogue, state, and what runs its stage.

A topic of a table may be deleted, denied or made too small for its rows at any time. Then the Kafka
transaction fails, and the client may become unusable. So the row mapper restarts from its state, and knows
which topics refused rows: their tables are quarantined from the first row that is not published.
"""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial

from millrace.kafka.client import connect
from millrace.kafka.exactly_once import run_stage
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.pause import in_its_place
from millrace.kafka.refusals import TopicsRefusedError
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.takeover import assembled
from millrace.runtime.service import Service, run_service
from services.rowmapper.metrics import RowMapperMetrics


def main() -> int:
    """Run the row mapper until it is stopped; return the process's exit code."""
    return run_service("rowmapper", RowMapperSettings, run)


def run(service: Service[RowMapperSettings]) -> None:
    """Map rows until ``service.stop`` is set."""
    admin = connect(service.settings.kafka, service.stop)
    in_its_place(service, admin, partial(_run, service))


def _run(service: Service[RowMapperSettings]) -> None:
    """Map rows; begin again where topics refuse some, and write nothing more to these."""
    refused: dict[str, str] = {}
    own = service.settings.names.of_service("rowmapper").kinds
    while True:
        try:
            _map(service, refused)
        except TopicsRefusedError as error:
            leave_out(error, own, refused)
            service.health.beat()
            service.log.warning("restarting: topics refuse rows", topics=sorted(error.topics))
        else:
            return


def leave_out(error: TopicsRefusedError, own: Collection[str], refused: dict[str, str]) -> None:
    """Add topics that take no rows to those known; raise ``error`` where that is of no use."""
    if not set(own).isdisjoint(error.topics) or refused.keys() >= error.topics.keys():
        raise error
    refused |= {
        topic: f"{reason}. The table's rows wait: 'millrace deadletter redrive' publishes them"
        for topic, reason in error.topics.items()
    }


def _map(service: Service[RowMapperSettings], refused: Mapping[str, str]) -> None:
    """Map rows until ``service.stop`` is set, but none into topics that are ``refused``."""
    with assembled(service, refused, completes=True) as parts, ExitStack() as registered:
        reader, stage = parts.reader, parts.stage
        for metrics in (
            RowMapperMetrics(service.metrics, stage, reader.lag),
            CommitMetrics(service.metrics, "rowmapper", parts.producer),
        ):
            registered.callback(service.metrics.unregister, metrics)
        # The definitions of thousands of tables take a second: while the reader still begins, not after it.
        parts.binder.refresh()
        service.log.info("mapping rows", topic=parts.topics.events, offset=stage.next_offset)
        run_stage(reader, parts.committer, stage, stop=service.stop, health=service.health)
