"""The job ``reprocess`` makes the rows that the row mapper publishes of every real file, in any pieces."""

from pathlib import Path

import pytest

from millrace import kernel
from millrace.spark.decoding import Decoding
from tests.corpus.conftest import CorpusFile
from tests.corpus.test_kernel_transactions import _LARGE, topic_of
from tests.unit.rowmapper.harness import SOURCE
from tests.unit.spark.test_decoding import decode, published, raw, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_every_real_file(
    corpus: list[CorpusFile], sample_logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = count = 0
    for number, path in enumerate([*(file.path for file in corpus), *sample_logs]):
        topic = None if path.stat().st_size > _LARGE else topic_of(path)
        if topic is None or not topic.records:
            continue
        expected, history = published(path)
        records = raw(path)
        for cuts, batch in ((1, 10_000), (3, 70), (17, 1000)):
            folder, decoding = tmp_path / f"{number}-{cuts}", Decoding(SOURCE, True, 0, schemas=history)
            blocks = cuts == 3 and kernel.has("records")
            outcome = decode(records, cuts, folder, decoding, batch, blocks=blocks)
            found = {name: read for name, read in rows(folder, outcome).items() if name.startswith("rows/")}
            assert found == expected, (path, cuts)
        files += 1
        count += sum(map(len, expected.values()))
    with capsys.disabled():
        print(f"\n{count} rows of {files} files reprocessed in 1, 3 and 17 pieces")
    assert count > 10_000
