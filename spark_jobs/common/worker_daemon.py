"""Starts Spark's Python workers: ``pyspark.daemon``, and Spark calls it as that, but for four things.

pyspark's daemon prints a traceback for a worker that finds its connection to Java closed, as where a job
fails or is stopped while the worker starts. What the job says is all that there is to say.

Spark puts zips of pyspark and a jar on the path, whose directories a worker reads again for each task, up to
Python 3.12: some 0.1 s. Where pyspark is installed, it is imported from there.

Workers are forks of the daemon: what jobs have them do is imported here, once instead of in each of them.
After each task they collect garbage, some 50 ms where that goes over all that was imported: here it does not.
"""

import gc
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def leave_archives() -> None:
    """Take Spark's archives from the path where what they have is installed."""
    archives = [one for one in sys.path if _is_of_spark(Path(one))]
    others = [one for one in sys.path if one not in archives]
    if all(PathFinder.find_spec(name, others) for name in ("pyspark", "py4j")):
        sys.path[:] = others
        for one in archives:
            sys.path_importer_cache.pop(one, None)


def _is_of_spark(path: Path) -> bool:
    return path.suffix == ".jar" or (path.suffix == ".zip" and path.parent.parts[-2:] == ("python", "lib"))


def main() -> None:
    """Be the daemon."""
    leave_archives()
    from pyspark import daemon  # noqa: PLC0415 - from where it now is

    from millrace.spark import source  # noqa: F401, PLC0415 - for the workers
    from millrace.spark.decoding import QuietTraceback  # noqa: PLC0415
    from spark_jobs.common import events, pieces, rows, tables  # noqa: F401, PLC0415 - for the workers

    gc.freeze()
    daemon.traceback = QuietTraceback  # type: ignore[attr-defined,assignment]
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
