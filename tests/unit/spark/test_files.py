"""Files that executors have left."""

from pathlib import Path

from spark_jobs.common.files import WrittenFile, remove_others


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
