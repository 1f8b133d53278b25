"""What the states of a source say is missing in its row topics, or waits: for ``status`` and ``doctor``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from millrace.avro.service_state import RowMapperState
from millrace.avro.snapshots import MERGED_KEY, SnapshotMerged, SnapshotState
from millrace.contract import Topics
from millrace.dead_letters import count_waiting
from millrace.finding import listed
from millrace.kafka.state import last_record, read_state
from millrace.runtime.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Changes or rows that are missing, or wait. ``kind`` is for programs, ``advice`` says what to do."""

    kind: str
    text: str
    advice: str


def shortfalls(kafka: KafkaSettings, topics: Topics) -> Iterator[Shortfall]:
    """Yield all that is known; raises :class:`SingleObjectError` where a state cannot be read.

    The state topic must exist.
    """
    stored = read_state(kafka, topics.source, "rowmapper", undecided=False)
    if stored is not None and stored.value is not None:
        state = RowMapperState.from_bytes(stored.value)
        yield from of_rowmapper(state, count_waiting(kafka, topics.deadletter, state.quarantined))
    else:
        yield Shortfall("not_run", "the row mapper has no state: it has not run", "start it")
    snapshot = read_state(kafka, topics.origin, "snapshot", undecided=False)
    if snapshot is not None and snapshot.value is not None:
        yield from of_snapshot(SnapshotState.from_bytes(snapshot.value))
    merged = last_record(kafka, topics.state, lambda record: record.key == MERGED_KEY)
    if merged is not None and merged.value:
        refused = SnapshotMerged.from_bytes(merged.value).refused
        if refused:
            yield Shortfall(
                "snapshot",
                f"{refused:,} chunks of snapshots were left out by the row mapper",
                "its log names the table and the reason; take the snapshot of that table again",
            )


def of_rowmapper(state: RowMapperState, waiting: Mapping[str, int] | None = None) -> Iterator[Shortfall]:
    """Yield what the row mapper has not published; ``waiting`` are the dead letters that wait, by table."""
    paused, quarantined = (
        [
            table.name if waiting is None else f"{table.name} ({waiting[table.name]:,} dead letters)"
            for table in state.quarantined
            if table.is_paused is is_paused
        ]
        for is_paused in (True, False)
    )
    if quarantined:
        yield Shortfall(
            "quarantine",
            f"rows wait in the dead letter topic: {listed(quarantined)}",
            "'millrace deadletter list' says why; when that is mended, 'millrace deadletter redrive'",
        )
    if paused:
        yield Shortfall("pause", f"tables are paused: {listed(paused)}", "'millrace resume DATABASE.TABLE'")
    if state.pending_xa:
        yield Shortfall(
            "pending_xa",
            f"{len(state.pending_xa):,} XA transactions are prepared and not decided",
            "XA RECOVER on the server lists them: their rows are published when they are committed",
        )
    if gaps := state.counters.get("gaps", 0):
        yield Shortfall(
            "gaps",
            f"{gaps:,} gaps: changes are missing in the row topics",
            "'millrace verify rows' says of which tables; 'millrace snapshot DATABASE.TABLE' reads them",
        )
    if state.non_row_changes:
        by_number = sorted(state.non_row_changes.items(), key=itemgetter(1), reverse=True)
        yield Shortfall(
            "non_row_changes",
            "changes were logged as statements, and no row topic has them: "
            + listed([f"{table} {number:,}" for table, number in by_number]),
            "'millrace verify rows' names them: let their sessions log rows (binlog_format), and take a "
            "snapshot of their tables",
        )


def of_snapshot(state: SnapshotState) -> Iterator[Shortfall]:
    """Yield which tables the last snapshots have not read."""
    unread = [f"{table.database}.{table.table}" for table in state.tables if not table.done]
    if unread and not state.finished:
        yield Shortfall(
            "snapshot",
            f"tables are not read to their end: {listed(unread)}",
            "if no snapshot is running, 'millrace snapshot' resumes it",
        )
    for table in state.tables:
        if table.note:
            yield Shortfall(
                "snapshot",
                f"{table.database}.{table.table} was left out: {table.note}",
                "mend what it says, then 'millrace snapshot' tries again",
            )
