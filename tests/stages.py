"""Runs stages without Kafka: what they write is kept in lists, whole or not at all."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millrace.stage import Record

Written = tuple[str, bytes | None, bytes | None, int, Any]
"""Topic, key, value, timestamp and headers of a record."""


class CrashError(Exception):
    """The process ends here."""


class Ledger:
    """What was committed, topic by topic, and the state with it.

    A commit is due at the first yield of a stage at which ``commit_every`` records wait. After
    ``crash_after`` of them :class:`CrashError` is raised.
    """

    def __init__(self, commit_every: int = 10**9, *, crash_after: int | None = None) -> None:
        self.topics: dict[str, list[Written]] = {}
        self.state: Any = None
        self.commits = 0
        self.commit_every = commit_every
        self.crash_after = crash_after
        self._waiting: list[Written] = []

    @property
    def written(self) -> list[Written]:
        """All that is committed, one topic after the other."""
        return [record for topic in sorted(self.topics, reverse=True) for record in self.topics[topic]]

    def drop(self) -> None:
        """Forget what waits, as a crash does."""
        self._waiting.clear()

    def run(self, stage: Any, records: Sequence[Record], batch: int = 500) -> None:
        """Let a stage take records, and commit at the end."""
        self.drop()
        for part in batches(records, batch):
            for _ in stage.take(part):
                self.settle(stage)
        self.commit(stage)

    def settle(self, stage: Any) -> None:
        """Take what a stage has written; commit if that is due."""
        for (topic, _), records in stage.output.groups.items():
            self._waiting += [(topic, *record) for record in records]
        stage.output.clear()
        if len(self._waiting) >= self.commit_every:
            self.commit(stage)

    def commit(self, stage: Any) -> None:
        """Keep what waits, with the state."""
        state = stage.state()
        assert self.state is None or not state.precedes(self.state), "the state goes back"
        for record in self._waiting:
            self.topics.setdefault(record[0], []).append(record)
        self._waiting.clear()
        # As it comes back from Kafka.
        self.state = type(state).from_bytes(state.to_bytes())
        self.commits += 1
        if self.crash_after is not None and self.commits >= self.crash_after:
            raise CrashError


def batches(records: Sequence[Record], size: int) -> Iterator[Sequence[Record]]:
    """Cut records into batches."""
    return (records[at : at + size] for at in range(0, len(records), size))


def exhaust(work: Iterable[None]) -> None:
    """Run a stage's generator to its end."""
    for _ in work:
        pass
