"""``python -m services.snapshot``."""

import sys

from millrace.runtime.imports import uncollected

with uncollected():
    from services.snapshot.app import main

if __name__ == "__main__":
    sys.exit(main())
