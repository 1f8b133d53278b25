"""Files that executors write, and those that they have left."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.common.files import ParquetFiles, WrittenFile, remove_others


def test_what_lost_attempts_have_left_is_removed(tmp_path: Path) -> None:
    kept = WrittenFile("rows/shop.t", "rows/shop.t/day=2026-01-01/00000-a-0.parquet", 1, 1)
    left = tmp_path / "rows" / "shop.t" / "day=2026-01-01" / "00000-b-0.parquet"
    other = tmp_path / "ddl" / "00000-b-1.parquet"
    page = tmp_path / "report.html"
    for file in (tmp_path / kept.path, left, other, page):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    remove_others(str(tmp_path), [kept])
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == {tmp_path / kept.path, page}
    remove_others(str(tmp_path / "nothing"), [kept])


def test_columns_with_a_dictionary_are_read_as_others(tmp_path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 0, None, 1], pa.int32()), ["a", "b"])
    plain = pa.array([["x"], [], None, ["y", None]], pa.list_(pa.field("element", pa.string())))
    batch = pa.RecordBatch.from_struct_array(
        pa.StructArray.from_arrays(
            [
                pa.StructArray.from_arrays(
                    [texts, pa.array([1, 2, 3, 4]), pa.array([7, 7, None, 7])], ["name", "number", "thread"]
                ),
                plain,
            ],
            ["source", "list"],
        )
    )
    with ParquetFiles(str(tmp_path), "part", ["source.thread"]) as files:
        files.write("t", batch)
        files.write("t", batch.slice(2))
        (one,) = files.close()
    file = pq.ParquetFile(tmp_path / one.path)
    assert file.schema_arrow.field("source").type[0].type == pa.string()
    assert file.read().to_pylist() == batch.to_pylist() + batch.slice(2).to_pylist()
    columns = [file.metadata.row_group(0).column(at) for at in range(4)]
    assert {one.path_in_schema: (one.has_dictionary_page, one.is_stats_set) for one in columns} == {
        "source.name": (True, False),
        "source.number": (False, True),
        "source.thread": (True, True),
        "list.list.element": (False, True),
    }


def test_rows_of_a_day_are_a_file(tmp_path: Path) -> None:
    days = [date(2026, 1, 1), date(2026, 1, 1), date(2026, 1, 2)]
    batch = pa.RecordBatch.from_pydict({"n": pa.array([1, 2, 3]), "day": pa.array(days)})
    with ParquetFiles(str(tmp_path), "part") as files:
        files.write("t", batch.select(["n"]), batch.column("day"))
        files.write("t", batch.select(["n"]).slice(0, 2), batch.column("day").slice(0, 2))
        written = {one.path.split("/")[1]: one.path for one in files.close()}
    read = {
        day: pq.read_table(tmp_path / path, columns=["n"])["n"].to_pylist() for day, path in written.items()
    }
    assert read == {"day=2026-01-01": [1, 2, 1, 2], "day=2026-01-02": [3]}
