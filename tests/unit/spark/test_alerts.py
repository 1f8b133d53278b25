"""What is told of incidents in the topic of alerts, and what was told before; needs no Spark."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from spark_jobs.loops.alerts import alert_id, new_alerts
from spark_jobs.loops.incidents import Incident, Statement

SOURCES = ["north", "east"]
LOOP = Incident(
    "loop", "critical", "One transaction circulates.", [99], ["north", "east"], since=1000, until=1060,
    transactions=1, laps=7, lap_ms=2.5, lap_bytes=480, going=True, path=["north", "east"],
    tables=["shop.log"], statements=[Statement("north", "STOP REPLICA;", "stops it")],
    selects=[("repeats", 99, 0)],
)  # fmt: skip


def told(*incidents: Incident, before: Mapping[bytes, bytes] | None = None) -> dict[str, dict[str, Any]]:
    found = new_alerts(incidents, {1: ["99:0:bin.000001:4"]}, SOURCES, before or {})
    return {key: json.loads(value) for key, value in found.items()}


def as_before(**of_loop: Any) -> dict[bytes, bytes]:
    return {alert_id(LOOP, SOURCES).encode(): json.dumps({"until": 1060, **of_loop}).encode()}


def test_an_alert_has_all_that_is_known_of_the_incident() -> None:
    (alert,) = told(LOOP).values()
    del alert["alerted_at"], alert["version"]
    assert alert == {
        "id": alert_id(LOOP, SOURCES),
        "job": "loop_detection",
        "sources": ["north", "east"],
        "kind": "loop",
        "severity": "critical",
        "what": "One transaction circulates.",
        "origins": [99],
        "members": ["north", "east"],
        "since": 1000,
        "until": 1060,
        "transactions": 1,
        "laps": 7,
        "lap_ms": 2.5,
        "lap_ms_at_most": None,
        "lap_bytes": 480,
        "going": True,
        "path": ["north", "east"],
        "tables": ["shop.log"],
        "evidence": [],
        "statements": [{"member": "north", "sql": "STOP REPLICA;", "why": "stops it"}],
        "keys": ["99:0:bin.000001:4"],
    }


def test_the_id_is_that_of_the_cause() -> None:
    same = replace(
        LOOP, severity="warning", what="Five.", members=["east", "north"], since=1, laps=9, selects=[
            ("repeats", 99, 1), ("repeats", 99, 0)
        ],
    )  # fmt: skip
    behind = replace(LOOP, members=["north"])  # the logs of others are not read so far yet
    assert len(told(LOOP, same, behind)) == 1
    missing = replace(LOOP, kind="missing")
    others = [
        missing,
        replace(missing, members=["north"]),
        replace(LOOP, origins=[98]),
        replace(LOOP, selects=[("skipped", 99, 0)]),
    ]
    assert len(told(LOOP, *others)) == 5
    assert alert_id(LOOP, ["west", "east"]) != alert_id(LOOP, SOURCES)


def test_the_id_of_a_filter_is_that_of_its_place() -> None:
    """Of further origins, and at further members, the same filter is seen later."""
    one = replace(LOOP, kind="filtered", origins=[1], selects=[("skipped", 1, 1)])
    later = replace(one, origins=[1, 2], members=["north", "west"], selects=[("never", 2, 1)])
    assert len(told(one, later)) == 1
    assert len(told(one, replace(one, members=["east", "north"]))) == 2


@pytest.mark.parametrize(
    ("before", "since", "again"),
    [
        ({}, 1000, False),
        ({}, 1060, False),  # the part that was read moves on, and it goes on
        ({}, 1061, True),
        ({"until": None}, 1061, False),
        ({}, None, False),
        ({"until": "yesterday"}, 1061, False),
    ],
)
def test_told_again_when_it_comes_back(before: dict[str, Any], since: int | None, again: bool) -> None:
    found = told(replace(LOOP, since=since, until=2000), before=as_before(**before))
    assert bool(found) is again


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({}, False),
        ({"transactions": 2}, True),
        ({"transactions": 2, "kind": "loop"}, True),
        ({"transactions": 2, "kind": "filtered"}, False),
        ({"until": 1061}, True),  # some of the first have left the window
        ({"until": 1061, "kind": "loop"}, False),
        ({"until": 1061, "selects": [("never", 99, 0)]}, False),
    ],
)
def test_what_has_grown_is_told_again(change: dict[str, Any], again: bool) -> None:
    one = replace(LOOP, **{"kind": "missing", "selects": [("skipped", 99, 0)], **change})
    before = {alert_id(one, SOURCES).encode(): json.dumps({"until": 1060, "transactions": 1}).encode()}
    assert bool(told(one, before=before)) is again


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b"null"])
def test_what_others_write_into_the_topic_hides_nothing(value: bytes) -> None:
    assert told(LOOP, before={alert_id(LOOP, SOURCES).encode(): value})
