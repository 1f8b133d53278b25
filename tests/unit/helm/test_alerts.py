"""The alerts of the chart, given to a real Prometheus' rules engine with series as they come and go."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.debian import unpacked

from .chart import MINIMAL, merged, render


@pytest.fixture(scope="module", autouse=True)
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The program on PATH, else that of Debian's package of Prometheus."""
    with pytest.MonkeyPatch.context() as environment:
        if shutil.which("promtool") is None:
            root = unpacked(tmp_path_factory.mktemp("debian") / "prometheus", "prometheus")
            if root is None:
                pytest.skip("promtool is not on PATH, and apt-get cannot fetch Debian's prometheus")
            environment.setenv("PATH", str(root / "usr" / "bin"), prepend=os.pathsep)
        yield


OURS = {"namespace": "default", "job": "try-millrace-metrics", "source": "shop"}
SERVICES = ("reader", "decoder", "rowmapper")

Series = dict[str, str]
"""What promtool takes: a series and its values, one a minute; ``_`` is a scrape that failed."""


def rules(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The rules for ``MINIMAL`` with changes."""
    values = merged(MINIMAL, {"metrics": {"prometheusRule": {"enabled": True}}}, *changes)
    (found,) = (item for item in render(values) if item["kind"] == "PrometheusRule")
    return list(found["spec"]["groups"])


def series(name: str, values: str, component: str = "reader", **labels: str) -> Series:
    """One series of our release, or with other labels of another."""
    everything = {**OURS, "component": component, "pod": f"{component}-1", **labels}
    text = ",".join(f'{label}="{value}"' for label, value in everything.items())
    return {"series": f"{name}{{{text}}}", "values": values}


def well(**labels: str) -> list[Series]:
    """All three services at work for two hours, with nothing to tell."""
    gauges = {
        "reader": {"millrace_reader_connected": 1},
        "decoder": {},
        "rowmapper": {"millrace_rowmapper_quarantined_tables": 0, "millrace_rowmapper_pending_xa": 0},
    }
    return [
        series(name, f"{value}x120", component, **labels)
        for component in SERVICES
        for name, value in {
            "millrace_service_ready": 1,
            "process_start_time_seconds": 1000,
            **gauges[component],
        }.items()
    ]


def without(found: list[Series], name: str, component: str) -> list[Series]:
    """The series without one of them."""
    return [one for one in found if not (one["series"].startswith(name) and component in one["series"])]


@cache
def check(rules: str, folder: Path) -> None:
    """Have promtool check the syntax of rules."""
    (folder / "checked.json").write_text(rules)
    subprocess.run(["promtool", "check", "rules", "--lint-fatal", "checked.json"], cwd=folder, check=True)


def fired(folder: Path, inputs: list[Series], minute: int, *changes: dict[str, Any]) -> list[tuple[str, ...]]:
    """Which alerts fire after so many minutes: each with its severity and what tells it apart.

    promtool compares with what is expected and prints what came; here nothing is expected.
    """
    groups = rules(*changes)
    names = sorted({rule["alert"] for group in groups for rule in group["rules"]})
    text = json.dumps({"groups": groups})
    check(text, folder.parent)
    (folder / "rules.json").write_text(text)
    at = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for name in names]
    test = {"interval": "1m", "input_series": inputs, "alert_rule_test": at}
    (folder / "tests.json").write_text(json.dumps({"rule_files": ["rules.json"], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.json"], cwd=folder, capture_output=True, text=True, check=False
    )
    return sorted(_alerts(done.stdout + done.stderr))


def _alerts(told: str) -> list[tuple[str, ...]]:
    """Read the labels of the alerts that promtool did not expect."""
    if "SUCCESS" in told:
        return []
    found = re.findall(r"Labels:\{(.*)\}", told)
    assert found, told
    every = [dict(re.findall(r'(\w+)="([^"]*)"', labels)) for labels in found]
    return [(one["alertname"], one["severity"], one["source"], one["component"]) for one in every]


NOT_READY = [
    ("MillraceNotReady", "critical", "shop", "reader"),
    ("MillraceNotReady", "warning", "shop", "decoder"),
    ("MillraceNotReady", "warning", "shop", "rowmapper"),
]


def test_all_is_well(tmp_path: Path) -> None:
    assert fired(tmp_path, well(), 60) == []


def test_services_that_never_came_are_missed(tmp_path: Path) -> None:
    assert fired(tmp_path, [], 4) == []
    assert fired(tmp_path, [], 6) == sorted(NOT_READY)


def test_each_service_of_each_source_is_missed_unless_it_is_held(tmp_path: Path) -> None:
    stock = {"mysql": {"host": "h", "existingSecret": "s"}, "decoder": {"enabled": False}}
    found = fired(tmp_path, well(), 60, {"sources": {"stock": stock}})
    assert [(source, component) for _, _, source, component in found] == [
        ("stock", "reader"),
        ("stock", "rowmapper"),
    ]


def test_a_source_with_one_process_misses_that(tmp_path: Path) -> None:
    stock = {"mysql": {"host": "h", "existingSecret": "s"}, "mode": "run"}
    found = fired(tmp_path, well(), 60, {"sources": {"stock": stock}})
    assert found == [("MillraceNotReady", "critical", "stock", "run")]


def test_another_release_does_not_stand_for_ours_and_is_not_ours(tmp_path: Path) -> None:
    for elsewhere in ({"job": "other-millrace-metrics"}, {"namespace": "other"}):
        others = [
            *well(**elsewhere),
            series("millrace_reader_connected", "0x120", **elsewhere, pod="2"),
            series("millrace_reader_gaps_total", "0x30 1x90", **elsewhere),
            series("millrace_rowmapper_quarantined_tables", "1x120", "rowmapper", **elsewhere, pod="2"),
            series("process_start_time_seconds", "0+60x120", **elsewhere, pod="2"),
        ]
        assert fired(tmp_path, others, 40) == sorted(NOT_READY)
        assert fired(tmp_path, [*others, *well()], 40) == []


def test_the_series_of_pods_that_are_scraped_in_another_way_can_be_named(tmp_path: Path) -> None:
    selector = {"metrics": {"prometheusRule": {"selector": 'job="pods",cluster="a"'}}}
    assert fired(tmp_path, well(job="pods", cluster="a"), 60, selector) == []
    assert fired(tmp_path, well(job="pods", cluster="b"), 60, selector) == sorted(NOT_READY)


def test_a_service_that_ends_before_it_is_scraped_is_missed(tmp_path: Path) -> None:
    rest = without(well(), "millrace_", "reader")
    gone = series("millrace_service_ready", "1x30 stale")
    assert fired(tmp_path, [*rest, gone], 60) == NOT_READY[:1]
    assert fired(tmp_path, [*rest, series("millrace_service_ready", "1x30 0x60")], 60) == NOT_READY[:1]


def test_a_service_that_starts_again_and_again_is_told(tmp_path: Path) -> None:
    """It works for a minute and is started again after six more, the longest that Kubernetes waits."""
    rest = without(without(well(), "millrace_", "reader"), "process_", "reader")
    ready = series("millrace_service_ready", " ".join(["1 stale _x5"] * 12))
    started = series("process_start_time_seconds", " ".join(f"{1000 + 420 * n} stale _x5" for n in range(12)))
    found = fired(tmp_path, [*rest, ready, started], 62)
    assert found == [
        ("MillraceNotReady", "critical", "shop", "reader"),
        ("MillraceRestarts", "warning", "shop", "reader"),
    ]


COUNTERS = [
    ("millrace_reader_gaps_total", "reader", "MillraceChangesLost"),
    ("millrace_reader_incidents_total", "reader", "MillraceChangesLost"),
    ("millrace_rowmapper_gaps_total", "rowmapper", "MillraceChangesLost"),
    ("millrace_reader_source_changes_total", "reader", "MillraceSourceChanged"),
    ("millrace_reader_bad_checksums_total", "reader", "MillraceBadChecksums"),
    ("millrace_decoder_dead_letters_total", "decoder", "MillraceDeadLetters"),
    ("millrace_rowmapper_dead_letters_total", "rowmapper", "MillraceDeadLetters"),
    ("millrace_rowmapper_non_row_changes_total", "rowmapper", "MillraceNonRowChanges"),
    ("millrace_rowmapper_snapshot_left_out_total", "rowmapper", "MillraceSnapshotLeftOut"),
]


@pytest.mark.parametrize(("counter", "component", "alert"), COUNTERS)
@pytest.mark.parametrize(
    "values", ["0x60 1x60", "_x60 1x60"], ids=["rises", "is above 0 when it is first seen"]
)
def test_a_counter_that_rose_is_told_for_a_while(
    tmp_path: Path, counter: str, component: str, alert: str, values: str
) -> None:
    inputs = [*well(), series(counter, values, component)]
    assert fired(tmp_path, inputs, 59) == []
    ((told, _, source, where),) = fired(tmp_path, inputs, 65)
    assert (told, source, where) == (alert, "shop", component)
    assert fired(tmp_path, inputs, 80) == []


@pytest.mark.parametrize(
    ("gauge", "component", "value", "alert"),
    [
        ("millrace_reader_connected", "reader", 0, "MillraceReaderDisconnected"),
        ("millrace_rowmapper_quarantined_tables", "rowmapper", 1, "MillraceTablesQuarantined"),
        ("millrace_rowmapper_pending_xa", "rowmapper", 1, "MillracePendingXa"),
        ("millrace_snapshot_tables_left_out", "snapshot", 1, "MillraceSnapshotLeftOut"),
    ],
)
def test_a_state_that_lasts_is_told(
    tmp_path: Path, gauge: str, component: str, value: int, alert: str
) -> None:
    inputs = [*without(well(), gauge, component), series(gauge, f"{value}x120", component)]
    assert [one[0] for one in fired(tmp_path, inputs, 90)] == [alert]


@pytest.mark.parametrize(
    ("component", "alert"),
    [
        ("reader", "MillraceReaderBehind"),
        ("decoder", "MillraceDecoderBehind"),
        ("rowmapper", "MillraceRowMapperBehind"),
    ],
)
def test_a_service_that_is_behind_is_told(tmp_path: Path, component: str, alert: str) -> None:
    def behind(seconds: int) -> list[Series]:
        """What is read is dated so long before 1970, at which time promtool begins."""
        return [
            *well(),
            series("millrace_reader_events_total", "0+60x120"),
            series(f"millrace_{component}_lag_records", "1000x120", component),
            series(f"millrace_{component}_record_timestamp_seconds", f"{-seconds}+60x120", component),
        ]

    assert [one[0] for one in fired(tmp_path, behind(400), 60)] == [alert]
    assert fired(tmp_path, behind(200), 60) == []
    assert fired(tmp_path, behind(400), 60, {"metrics": {"prometheusRule": {"lagSeconds": 500}}}) == []
