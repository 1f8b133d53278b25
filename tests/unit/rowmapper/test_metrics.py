"""Metrics say what the state says."""

from prometheus_client import CollectorRegistry, generate_latest

from services.rowmapper.metrics import RowMapperMetrics

from .harness import EventsTopic, World
from .logs import Log


def test_counters_go_on_after_a_restart():
    made = Log(EventsTopic()).begin().insert("a", (1, "x"), (2, "y")).commit().query("CREATE TABLE b (i INT)")
    made.xa_start("one").insert("a", (3, "")).xa_prepare("one")
    world = World(made.topic)
    world.run()
    made.begin().insert("a", (4, "")).commit()
    stage = world.run()
    registry = CollectorRegistry()
    RowMapperMetrics(registry, stage, lambda: 7)
    text = generate_latest(registry).decode()
    assert "millrace_rowmapper_rows_total 3.0" in text
    assert "millrace_rowmapper_transactions_total 2.0" in text
    assert "millrace_rowmapper_ddl_total 1.0" in text
    assert "millrace_rowmapper_pending_xa 1.0" in text
    assert "millrace_rowmapper_quarantined_tables 0.0" in text
    assert "millrace_rowmapper_lag_records 7.0" in text
