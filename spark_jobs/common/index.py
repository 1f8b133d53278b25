"""The page that links to all reports in a folder: for each source, the last results of its jobs.

It is built from the ``manifest.json`` of each folder. These are not trusted: a manifest that is not a job's
is ignored, sizes are bounded, and a page that was not written here is never replaced.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from millrace import __version__
from millrace.text import shortened
from spark_jobs.common.charts import many
from spark_jobs.common.report import GENERATOR, Link, Mood, Report

INDEX: Final = "index.html"

_MOST: Final = 1000
_MANIFEST_BYTES: Final = 1 << 20
_LONG: Final = 300
_SHOWN: Final = 40
_MOODS: Final = frozenset({"good", "bad", "doubt"})


@dataclass(frozen=True, slots=True)
class Listed:
    """The last whole run of a job into a folder."""

    folder: Path
    job: str
    sources: tuple[str, ...]
    written_at: str
    verdict: str
    mood: str
    faulty: int

    @classmethod
    def of(cls, folder: Path) -> "Listed | None":
        """Read a folder; None where it has no results of a job."""
        manifest = folder / "manifest.json"
        try:
            if not manifest.is_file() or not (folder / "report.html").is_file():
                return None
            with manifest.open("rb") as file:
                text = file.read(_MANIFEST_BYTES + 1)
            values = json.loads(text) if len(text) <= _MANIFEST_BYTES else None
            return cls._made(folder, values)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    @classmethod
    def _made(cls, folder: Path, values: Any) -> "Listed":
        sources = tuple(sorted(_text(source) for source in dict(values["input"])))
        if not sources:
            raise ValueError("no source")
        job, written_at = _text(values["job"]), _text(values["written_at"])
        mood = values.get("mood")
        faulty = values.get("faulty_records", 0)
        return cls(
            folder,
            job,
            sources,
            written_at,
            _text(values.get("verdict") or ""),
            mood if mood in _MOODS else "",
            faulty if type(faulty) is int else 0,
        )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value)} in place of a text")
    return shortened(value, _LONG)


def reports_in(folder: Path) -> Iterator[Listed]:
    """Read the folders in a folder; of very many those that were written last."""
    found = []
    for path in folder.iterdir():
        try:
            found.append(((path / "manifest.json").stat().st_mtime, path))
        except OSError:
            continue
    for _, path in sorted(found, reverse=True)[:_MOST]:
        if (listed := Listed.of(path)) is not None:
            yield listed


def index_page(reports: Iterable[Listed]) -> str:
    """Build the page: a section for each source, the newest report first."""
    by_source: dict[str, list[Listed]] = {}
    for one in reports:
        for source in one.sources:
            by_source.setdefault(source, []).append(one)
    page = Report("Reports", ["The last report of each job, by source."])
    for source in sorted(by_source):
        page.section(source)
        page.table(
            ["written, UTC", "job", "result", "report"],
            [
                (
                    _when(one),
                    one.job,
                    _result(one),
                    _link(one),
                )
                for one in sorted(by_source[source], key=lambda one: (one.written_at, one.job), reverse=True)
            ],
        )
    return page.html(f"Written by millrace {__version__}.")


def _when(one: Listed) -> str:
    return one.written_at.removesuffix("+00:00").replace("T", " ")


def _result(one: Listed) -> Mood:
    unread = f"{many(one.faulty, 'record')} could not be read." if one.faulty else ""
    return Mood(" ".join(filter(None, (one.verdict, unread))) or "-", "bad" if unread else one.mood)


def _link(one: Listed) -> Link:
    """Return the relative link to a report in a folder of any name."""
    return Link(
        shortened(one.folder.name, _SHOWN), f"./{quote(os.fsencode(one.folder.name), safe='')}/report.html"
    )


def is_ours(page: Path) -> bool:
    """Return whether a page is none or one of ours, which may be replaced."""
    if not page.is_symlink() and not page.exists():
        return True
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return GENERATOR.encode() in file.read(500)
