"""The grammar of transactions holds on every real log."""

from collections import Counter
from pathlib import Path

import pytest

from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import TransactionPayloadEvent, XidEvent
from millrace.binlog.file import iter_events
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionTracker
from tests.corpus.conftest import CorpusFile

# Logs made by hand for recovery tests of the server, in which a transaction never ends.
INTERRUPTED = {
    "mysql-testsuite-8.0_8.0.46/ddl_in_transaction.000001",
    "mysql-testsuite-8.0_8.0.46/orphan_begin_start.000001",
}
# Logs that end in mid-transaction: padding of another product, and two files that were cut.
OPEN_AT_END = {
    "osheroff_mysql-binlog-connector-java/mysql-bin.aurora-padding",
    "rust_mysql_common/corrupt-relay-bin.000624",
    "webscalesql-5.6/trunc_binlog.000001",
}
BROKEN = {
    "rust_mysql_common/corrupt-relay-bin.000624",
    "rust_mysql_common/binlog_truncated_event.000001",
    "rust_mysql_common/binlog_truncated_prev_gtid_event.000001",
}
# MySQL 5.0 writes an XID after a single statement without BEGIN.
XID_ALONE = ("tungsten-replicator/", "rust_mysql_common/corrupt-relay-bin")


def follow(path: Path, name: str) -> tuple[Counter[str], TransactionTracker]:
    """Follow a log; restores the tracker from what it saved before every event."""
    tracker, state = TransactionTracker(), StreamState()
    seen: Counter[str] = Counter()
    with path.open("rb") as stream:
        try:
            for position, data in iter_events(stream):
                decoded = decode_event(data, state, verify=False)
                events = [decoded]
                if isinstance(decoded.event, TransactionPayloadEvent):
                    inner_state = state.for_payload()
                    events += [decode_event(inner, inner_state) for inner in decoded.event.events()]
                for each in events:
                    tracker = TransactionTracker.restore(tracker.save())
                    step = tracker.feed(each.header, each.event, "log", position)
                    seen["begins"] += step.begins
                    seen["ends"] += step.ends is not None
                    seen["interrupts"] += step.interrupts is not None
                    seen["xid alone"] += isinstance(each.event, XidEvent) and step.transaction is None
                    if step.ends is not None:
                        seen[step.ends.value] += 1
        except BinlogError:
            assert name in BROKEN
    return seen, tracker


def check(name: str, seen: Counter[str], tracker: TransactionTracker) -> None:
    assert (seen["interrupts"] > 0) == (name in INTERRUPTED), name
    assert (tracker.transaction is not None) == (name in OPEN_AT_END), name
    assert seen["begins"] == seen["ends"] + seen["interrupts"] + (tracker.transaction is not None), name
    assert seen["xid alone"] == 0 or name.startswith(XID_ALONE), name


def test_transactions(
    corpus: list[CorpusFile], sample_logs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    total: Counter[str] = Counter()
    logs = [(file.path, file.name) for file in corpus]
    logs += [(path, f"{path.parent.name}/{path.name}") for path in sample_logs]
    for path, name in logs:
        seen, tracker = follow(path, name)
        check(name, seen, tracker)
        total += seen
    with capsys.disabled():
        print(f"\ntransactions: {total['begins']} in {len(logs)} logs, ends: ", end="")
        print(
            ", ".join(
                f"{count} {end}" for end, count in sorted(total.items()) if end not in {"begins", "ends"}
            )
        )
    assert all(total[end] for end in ("commit", "rollback", "xa prepare", "xa commit", "xa rollback"))
