"""Starts Spark's Python workers on this machine: Spark calls it as it calls ``pyspark.daemon``.

It is pyspark's daemon, which prints a traceback for a worker that finds its connection to Java closed, as
where a job fails or is stopped while the worker starts. What the job says is all that there is to say.
"""

import sys
import traceback

from pyspark import daemon


class _Traceback:
    """What the daemon uses of the module ``traceback``."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the exception that is being handled, unless Java has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | EOFError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = _Traceback  # type: ignore[attr-defined,assignment]
    daemon.manager()  # type: ignore[no-untyped-call]
