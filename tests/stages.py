"""Runs stages without Kafka: what they write is kept in lists, whole or not at all."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from millrace.avro.registry import SchemaLostError, UnknownSchemaError, same_schema
from millrace.stage import Output, OutputRecord, Record

Written = tuple[str, bytes | None, bytes | None, int, Any]
"""Topic, key, value, timestamp and headers of a record."""


class CrashError(Exception):
    """The process ends here."""


class Registry:
    """Stands where the schema registry is: gives ids to schemas, and outlives the services."""

    refuses = True

    def __init__(self) -> None:
        self.schemas: list[Any] = []
        self.subjects: dict[str, set[int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self) -> None:
        pass

    def register(self, subject: str, schema: Any) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        self.subjects.setdefault(subject, set()).add(schema_id)
        return schema_id

    def schema(self, schema_id: int) -> Any:
        if not 0 < schema_id <= len(self.schemas):
            raise UnknownSchemaError(f"there is no schema {schema_id}")
        return self.schemas[schema_id - 1]

    def confirm(self, subject: str, schema: Any, schema_id: int) -> None:
        if schema_id > len(self.schemas):
            self.register(subject, schema)
        if schema_id > len(self.schemas) or not same_schema(self.schemas[schema_id - 1], schema):
            raise SchemaLostError("the registry", subject, schema_id, "another schema")

    def look(self) -> None:
        pass

    def accepts_any(self, subject: str) -> bool:
        return False

    def subject_schemas(self, subject: str) -> dict[int, Any]:
        return {schema_id: self.schema(schema_id) for schema_id in self.subjects.get(subject, ())}


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
        self.written_as: Callable[[Output], Output] = lambda output: output
        """What is sent in place of an output."""
        self.companion: Any = None
        """What is kept beside the state, if anything."""
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
        for (topic, _), records in self.written_as(stage.output).groups.items():
            self._waiting += [(topic, *one) for record in records for one in unpacked(record)]
        stage.output.clear()
        if self.companion is not None:
            self.companion.settle()
        if len(self._waiting) >= self.commit_every:
            self.commit(stage)

    def commit(self, stage: Any) -> None:
        """Keep what waits, with the state."""
        state = stage.state()
        if self.companion is not None:
            self.companion.committing(state.to_bytes())
        assert self.state is None or not state.precedes(self.state), "the state goes back"
        for record in self._waiting:
            self.topics.setdefault(record[0], []).append(record)
        self._waiting.clear()
        # As it comes back from Kafka.
        self.state = type(state).from_bytes(state.to_bytes())
        self.commits += 1
        if self.crash_after is not None and self.commits >= self.crash_after:
            raise CrashError
        if self.companion is not None:
            self.companion.committed()


def unpacked(record: OutputRecord) -> Iterator[OutputRecord]:
    """Yield the records of a block, those of rows without their keys; or one that is no block."""
    block: Any = record[1]
    if block is None or isinstance(block, bytes):
        yield record
    elif hasattr(block, "number"):
        assert block.size == sum(len(one.value or b"") for one in block)
        for _, timestamp_ms, key, value, headers in block:
            yield key, value, timestamp_ms, headers
    else:
        for value, timestamp_ms in zip(block, block.timestamps(), strict=True):
            yield None, value, timestamp_ms, None


def batches(records: Sequence[Record], size: int) -> Iterator[Sequence[Record]]:
    """Cut records into batches."""
    return (records[at : at + size] for at in range(0, len(records), size))


def exhaust(work: Iterable[None]) -> None:
    """Run a stage's generator to its end."""
    for _ in work:
        pass


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a row record when it was published."""
    return {name: value for name, value in row.items() if name not in {"ts_ms", "ts_us", "ts_ns"}}


def without_nulls(value: Any) -> Any:
    """Leave out fields that are null: a table of all schemas has more of them than a file of one."""
    if isinstance(value, Mapping):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value
