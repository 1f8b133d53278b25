"""What the states say is missing, or waits: each state that may be wrong, alone and with nothing wrong."""

from dataclasses import replace

import pytest

from millrace.avro.service_state import PendingXa, QuarantinedTable, RowMapperState
from millrace.avro.snapshots import SnapshotRange, SnapshotState, SnapshotTable
from millrace.status.missing import of_rowmapper, of_snapshot

WELL = RowMapperState(7, counters={"rows": 9, "gaps": 0})
READ = SnapshotTable("shop", "a", ranges=[SnapshotRange(done=True)])


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        (WELL, []),
        (replace(WELL, counters={"gaps": 1}), ["gaps"]),
        (replace(WELL, non_row_changes={"shop.t": 1}), ["non_row_changes"]),
        (replace(WELL, quarantined=(QuarantinedTable("shop", "t", "1", 6, 7, "why"),)), ["quarantine"]),
        (replace(WELL, quarantined=(QuarantinedTable.paused("shop", "t", 6, 7),)), ["pause"]),
        (replace(WELL, pending_xa=(PendingXa("x", 1, 2),)), ["pending_xa"]),
    ],
)
def test_what_the_row_mapper_has_not_published(state: RowMapperState, kinds: list[str]) -> None:
    waiting = dict.fromkeys((table.name for table in state.quarantined), 12_000)
    found = list(of_rowmapper(state, waiting))
    assert [one.kind for one in found] == kinds
    assert all("12,000 dead letters" in one.text for one in found if one.kind in {"quarantine", "pause"})


@pytest.mark.parametrize(
    ("tables", "finished", "said"),
    [
        ([READ], True, []),
        ([READ, SnapshotTable("shop", "b")], False, ["tables are not read to their end: shop.b"]),
        ([READ, SnapshotTable("shop", "b", note="why")], True, ["shop.b was left out: why"]),
    ],
)
def test_what_a_snapshot_has_not_read(tables: list[SnapshotTable], finished: bool, said: list[str]) -> None:
    assert [one.text for one in of_snapshot(SnapshotState(1, tables, finished))] == said
