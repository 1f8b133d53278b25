"""``python -m services.reader``: run the reader with the settings of the environment."""

import sys

from millrace.runtime.imports import uncollected

with uncollected():
    from millrace.runtime.service import run_service
    from services.reader.app import run
    from services.reader.settings import ReaderSettings


def main() -> int:
    """Run the reader; return its exit code."""
    return run_service("reader", ReaderSettings, run)


if __name__ == "__main__":
    sys.exit(main())
