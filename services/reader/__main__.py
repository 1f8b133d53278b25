"""``python -m services.reader``: run the reader with the settings of the environment."""

import sys

from millrace.runtime.imports import uncollected

with uncollected():
    from millrace.reader.settings import ReaderSettings
    from millrace.runtime.service import run_service
    from services.reader.app import run


def main() -> int:
    """Run the reader; return its exit code."""
    return run_service("reader", ReaderSettings, run)


if __name__ == "__main__":
    sys.exit(main())
