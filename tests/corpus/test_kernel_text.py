"""``millrace binlog`` writes every file of the corpus with the kernel for text as without it."""

from collections.abc import Iterator
from functools import partial

import pytest

from millrace import kernel
from millrace.binlog_command.inputs import FileInput
from millrace.binlog_command.records import RawEvent
from tests.corpus.conftest import CorpusFile
from tests.unit.binlog_command.both_kernels import OUTPUTS, both


def _events(file: CorpusFile) -> Iterator[RawEvent]:
    for log in FileInput([str(file.path)]).logs():
        yield from log


@pytest.mark.skipif(not kernel.built("text"), reason="the kernel is not built (make kernel)")
def test_every_file_is_written_alike(corpus: list[CorpusFile]) -> None:
    for file in corpus:
        with_kernel, without = both(partial(_events, file), *OUTPUTS, verify=False)
        assert with_kernel == without, file.name
