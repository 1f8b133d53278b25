"""``millrace binlog`` writes every file of the corpus with the kernel as without it."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from millrace import kernel
from millrace.binlog.event_codec import BinlogEvent, encode_event
from millrace.binlog.state import StreamState
from millrace.binlog_command.inputs import FileInput
from millrace.binlog_command.records import LogDecoder, RawEvent
from tests.corpus.conftest import CorpusFile
from tests.unit.binlog_command.both_kernels import OUTPUTS, both


def _batches(path: Path) -> Iterator[list[RawEvent]]:
    for log in FileInput([str(path)]).logs():
        yield from log


def _first(path: Path, batches: int | None) -> Iterator[list[RawEvent]]:
    return islice(_batches(path), batches)


@pytest.mark.parametrize("batches", [4, pytest.param(None, marks=pytest.mark.slow, id="whole")])
@pytest.mark.skipif(not kernel.built("text"), reason="the kernel is not built (make kernel)")
def test_every_file_is_written_alike(corpus: list[CorpusFile], batches: int | None) -> None:
    for file in corpus:
        with_kernel, without = both(partial(_first, file.path, batches), *OUTPUTS, verify=False)
        assert with_kernel == without, file.name


@pytest.mark.skipif(not kernel.built("events"), reason="the kernel is not built (make kernel)")
def test_every_sample_is_decoded_alike(sample_logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for path in sample_logs:
        fast = LogDecoder()
        with monkeypatch.context() as without:
            without.setattr(kernel, "_enabled", False)
            reference = LogDecoder()
        for ours, theirs in zip(fast.records(_batches(path)), reference.records(_batches(path)), strict=True):
            assert ours[:8] == theirs[:8], (path, theirs.position)


@pytest.mark.skipif(not kernel.built("events"), reason="the kernel is not built (make kernel)")
def test_what_is_exact_has_the_same_bytes_when_it_is_encoded_again(corpus: list[CorpusFile]) -> None:
    exact = total = 0
    for file in corpus:
        for record in LogDecoder(verify=False).records(_batches(file.path)):
            total += 1
            if record.exact:
                exact += 1
                assert isinstance(record.event, BinlogEvent)
                assert encode_event(record.event, StreamState(record.state.format)) == record.data
    assert exact > 0.9 * total
