"""The folder of a job's results: those of a run replace the ones before it when they are whole."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from spark_jobs.common.job import Job, _settings
from spark_jobs.common.report import Report


class Steps:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_REGISTRY_URL", "http://registry:8081")
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")


def a_run(folder: Path, run: str) -> Job:
    """Begin a run, and write a table of it."""
    nothing = cast("Any", None)
    settings = _settings(["shop"], None, None)
    job = Job("analytics", str(folder), {}, [], cast("Any", Steps()), nothing, settings, run=f"run-{run}")
    (folder / job.run / "rows").mkdir(parents=True)
    (folder / job.run / "rows" / "part").write_text(run)
    return job


def found(folder: Path) -> list[str]:
    """Say which run each way leads to."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return [
        manifest["run"].removeprefix("run-"),
        json.loads((folder / "summary.json").read_text())["run"],
        (folder / "rows" / "part").read_text(),
        (folder / "latest" / "rows" / "part").read_text(),
    ]


def finish(job: Job) -> None:
    job.finish({"run": job.run.removeprefix("run-")}, Report("title", []))


def test_a_run_replaces_the_one_before(tmp_path: Path) -> None:
    for run in ("1", "2", "3", "4"):
        finish(a_run(tmp_path, run))
        assert found(tmp_path) == [run] * 4
    # The last but one may still be read.
    assert sorted(path.name for path in tmp_path.glob("run-*")) == ["run-3", "run-4"]
    assert (tmp_path / "report.html").is_file()
    assert not list(tmp_path.glob(".*"))


def test_what_is_not_whole_replaces_nothing(tmp_path: Path) -> None:
    finish(a_run(tmp_path, "1"))
    broken = a_run(tmp_path, "2")  # killed: nothing follows
    assert found(tmp_path) == ["1"] * 4
    broken.discard()
    assert not (tmp_path / broken.run).exists()
    assert found(tmp_path) == ["1"] * 4


@pytest.mark.parametrize("step", ["write_text", "_link"])
def test_killed_while_results_are_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    finish(a_run(tmp_path, "1"))
    with monkeypatch.context() as patched:
        patched.setattr(f"spark_jobs.common.job.{step}", _killed)
        with pytest.raises(KeyboardInterrupt):
            finish(a_run(tmp_path, "2"))
    of = {"write_text": "1", "_link": "2"}[step]
    assert found(tmp_path) == [of] * 4
    finish(a_run(tmp_path, "3"))
    assert found(tmp_path) == ["3"] * 4


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_results_of_an_earlier_version_give_way(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "part").write_text("old")
    (tmp_path / "summary.json").write_text("{}")
    finish(a_run(tmp_path, "1"))
    assert found(tmp_path) == ["1"] * 4


def test_the_verdict_is_said(tmp_path: Path) -> None:
    job = a_run(tmp_path, "1")
    report = Report("title", [])
    report.verdict("One incident: loop.", "bad")
    job.finish({}, report)
    assert cast("Steps", job.steps).said[0] == "One incident: loop."
