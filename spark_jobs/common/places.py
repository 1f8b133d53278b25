"""Small files whole, on the local disk or where else Spark reads and writes."""

import secrets
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_jobs.common.session import hadoop_path


def local_path(path: str) -> Path | None:
    """Return a path on this machine; None where it is elsewhere."""
    parts = urlsplit(path)
    return Path(parts.path if parts.scheme else path) if parts.scheme in ("", "file") else None


def absolute(path: str) -> str:
    """Return the whole of a path on this machine, as executors need it; others as they are."""
    local = local_path(path)
    return path if local is None else str(local.absolute())


def seen_by_executors(spark: SparkSession, folder: Path) -> bool:
    """Return whether executors can reach a folder of this machine: as many as answer at once."""
    context = spark.sparkContext
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".millrace-") as file:
        path = Path(file.name)

        def look(_: int) -> bool:
            return path.exists()

        tasks = context.defaultParallelism
        return all(context.parallelize(range(tasks), tasks).map(look).collect())


def write_file(file: Path, text: str) -> None:
    """Write a file of this machine atomically, replacing an earlier one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    whole.write_text(text, encoding="utf-8")
    whole.replace(file)


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file atomically, replacing an earlier one."""
    file = local_path(path)
    if file is not None:
        write_file(file, text)
        return
    system, place = hadoop_path(spark, path)
    stream = system.create(place, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def read_text(spark: SparkSession, path: str) -> str | None:
    """Read a file; None where there is none."""
    file = local_path(path)
    if file is not None:
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else None
    system, place = hadoop_path(spark, path)
    if not system.exists(place):
        return None
    # Spark gives no row for an empty file.
    return "".join(str(row.value) for row in spark.read.text(path, wholetext=True).collect())


def names_in(spark: SparkSession, path: str) -> list[str]:
    """Name what is in a folder."""
    local = local_path(path)
    if local is not None:
        return [one.name for one in local.iterdir()]
    system, place = hadoop_path(spark, path)
    return [str(one.getPath().getName()) for one in system.listStatus(place)]


def remove(spark: SparkSession, path: str) -> None:
    """Remove a file, or a folder and what is in it."""
    local = local_path(path)
    if local is not None:
        if local.is_file():
            local.unlink()
        shutil.rmtree(local, ignore_errors=True)
        return
    system, place = hadoop_path(spark, path)
    system.delete(place, True)
