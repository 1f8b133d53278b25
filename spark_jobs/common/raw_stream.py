"""A raw topic that is decoded as it grows: what a micro-batch takes of it, and what it leaves to the next.

A micro-batch ends where no transaction is open, at or before the last event that has arrived; the rest waits
for the next one. It does not wait for a prepared XA transaction: its offsets are kept and passed to the
following micro-batches until one of them has the decision.

A file beside Spark's checkpoint says how far the results reach. It is replaced when the results of a
micro-batch are complete. A micro-batch that Spark repeats after that is skipped; one that was interrupted
before is repeated and replaces its earlier results.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.spark.raw_topic import Piece, described_at, first_place, whole_stretch
from spark_jobs.common.faults import Faults
from spark_jobs.common.follow import Arrived, Pace, checkpoint, follow_topics
from spark_jobs.common.job import Input, Job, new_run
from spark_jobs.common.kafka import resolve_slice
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.pieces import cut_input
from spark_jobs.common.places import read_text, write_text

_POSITION: Final = "millrace.json"
_LEAST_OFFSETS: Final = 20_000
"""Fewer, of what has arrived, are not worth a pass to cut them."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a raw topic, which continues an earlier one if it is ``resumed``.

    ``prepared`` are XA transactions that were prepared before it, and are not decided there.
    """

    stretch: Piece
    prepared: Sequence[Piece]
    resumed: bool

    def pieces(self, job: Job, one: Input, number: int | None = None) -> list[Piece]:
        """Cut it into pieces in which no transaction is cut, by default by size."""
        if one.part.count < _LEAST_OFFSETS:
            return [self.stretch]
        pieces = cut_input(job, one, number)
        return [replace(self.stretch, end=pieces[0].end), *pieces[1:]]


@dataclass(frozen=True, slots=True)
class _Position:
    """How far the results of a source reach: all before ``offset``, except what is ``prepared``."""

    offset: int
    prepared: Sequence[tuple[int, int]] = ()
    """First and last offsets of XA transactions that are prepared and not decided."""


_Run = Callable[[Job, Mapping[str, MicroBatch]], Mapping[str, Outcome]]


def follow_raw(job: Job, run: _Run, pace: Pace, where: Mapping[str, Any]) -> None:
    """Call ``run`` with a job on each stretch that has arrived; where it was stopped, it resumes.

    ``where`` says where the results go: those of one folder always go there.
    """
    positions = _read(job, where)

    def take(arrived: Mapping[str, Arrived]) -> None:
        inputs, micro_batches = [], {}
        notes: list[str] = []
        for one in job.inputs:
            if one.part.topic not in arrived:
                continue
            found = _next(job, one, positions.get(one.source), arrived[one.part.topic], notes)
            if found is not None:
                part = one.part.between(found.stretch.start, found.stretch.end)
                inputs.append(replace(one, part=part))
                micro_batches[one.source] = found
        if not inputs:
            return
        batch = replace(job, inputs=inputs, notes=notes, faults=Faults(), run=new_run())
        batch.say_inputs()
        try:
            outcomes = run(batch, micro_batches)
        except BaseException:
            batch.discard()
            raise
        if batch.faults.number:
            job.steps.say(f"{batch.faults.number} records could not be read: see the report")
        for one in inputs:
            end = micro_batches[one.source].stretch.end
            outcome = outcomes[one.source]
            positions[one.source] = _Position(end, outcome.unfinished)
        _write(job, where, positions)

    follow_topics(job, take, pace)


def _next(
    job: Job, one: Input, position: _Position | None, arrived: Arrived, notes: list[str]
) -> MicroBatch | None:
    """Return what is to be decoded next of a source, of what has arrived; None if there is nothing.

    An undecided prepared transaction does not end the job when its records are deleted: a note
    says so. Without them its rows are missing, if it is committed after all.
    """
    kafka, topic, end = job.settings.kafka, one.part.topic, arrived.end
    (first, _) = resolve_slice(job.spark, job.kafka, topic).offsets[0]
    resumed = position is not None
    if position is None:
        ((start, _),) = one.part.offsets.values()
        begin = start if start <= first else first_place(kafka, topic, (start, end), first)
        if begin is None:
            return None
        position = _Position(begin)
    if position.offset < first:
        raise UserError(
            f"records {position.offset} to {first - 1} of {topic} were deleted before they were read; to "
            f"continue with what is left, remove {checkpoint(job)} and start again with --from",
            ExitCode.DATA,
        )
    stretch = whole_stretch(kafka, topic, (position.offset, end), first)
    if stretch is None:
        return None
    notes += [
        f"records {start} to {last} of {topic}, an XA transaction that is prepared and not decided, were "
        "deleted in part or whole: if it is committed, its rows are missing"
        for start, last in position.prepared
        if start < first
    ]
    prepared = [
        Piece(start, last + 1, described_at(kafka, topic, start, first))
        for start, last in position.prepared
        if start >= first
    ]
    return MicroBatch(stretch, prepared, resumed)


def _read(job: Job, where: Mapping[str, Any]) -> dict[str, _Position]:
    """Read how far the results reach."""
    file = f"{checkpoint(job)}/{_POSITION}"
    text = read_text(job.spark, file)
    if text is None:
        return {}
    known = json.loads(text)
    if known["where"] != where:
        told, given = (
            ", ".join(f"{name} {value}" for name, value in one.items()) for one in (known["where"], where)
        )
        raise SettingsError([f"{file} is of another stream ({told}; not {given}): name another --output"])
    return {
        source: _Position(one["offset"], [tuple(span) for span in one["prepared"]])
        for source, one in known["positions"].items()
    }


def _write(job: Job, where: Mapping[str, Any], positions: Mapping[str, _Position]) -> None:
    told = {
        source: {
            "offset": one.offset,
            "prepared": [list(span) for span in one.prepared],
        }
        for source, one in positions.items()
    }
    text = json.dumps({"where": where, "positions": told}, indent=2)
    write_text(job.spark, f"{checkpoint(job)}/{_POSITION}", text + "\n")
