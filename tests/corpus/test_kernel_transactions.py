"""The row mapper gives the same for every real file with the kernel for transactions and without it."""

import random
from pathlib import Path

import pytest

from millrace import kernel
from millrace.binlog.errors import BinlogError
from tests.corpus.conftest import CorpusFile
from tests.unit.kernel.both_stages import PartitionedWorld, run, run_with_crashes
from tests.unit.rowmapper.harness import EventsTopic, World

pytestmark = pytest.mark.skipif(
    not all(map(kernel.built, kernel.MODULES)), reason="the kernel is not built (make kernel)"
)

_LARGE = 2_000_000
_MOST_TO_CRASH = 1_000


def topic_of(path: Path) -> EventsTopic | None:
    """Put a file's events into a topic; None where it is damaged, which other tests are about."""
    topic = EventsTopic(1_000_000)
    try:
        topic.add_file(path)
    except BinlogError:
        return None
    return topic


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_every_real_file(
    corpus: list[CorpusFile], sample_logs: list[Path], capsys: pytest.CaptureFixture[str], every: int
) -> None:
    transactions = files = 0
    for number, path in enumerate([*(file.path for file in corpus), *sample_logs][::every]):
        topic = None if path.stat().st_size > _LARGE else topic_of(path)
        if topic is None or not topic.records:
            continue
        world = PartitionedWorld if number % 2 else World
        reference = run(world(topic), compiled=False)
        compiled = run(world(topic), compiled=True, chance=random.Random(number))
        assert compiled.groups == reference.groups, path
        assert compiled.state == reference.state, path
        if len(topic.records) < _MOST_TO_CRASH:
            crashing = run_with_crashes(world(topic), random.Random(number))
            assert crashing.groups == reference.groups, path
            assert crashing.certain == reference.certain, path
        transactions += compiled.compiled
        files += 1
    with capsys.disabled():
        print(f"\n{files} files mapped in both ways, {transactions} of their transactions by the kernel")
    # Those of tables that IF NOT EXISTS may have found wait: they are not mapped.
    assert transactions > 10
    assert transactions > 300 or every > 1
