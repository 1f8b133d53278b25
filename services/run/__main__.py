"""``python -m services.run``."""

import sys

from millrace.runtime.imports import uncollected

with uncollected():
    from services.run.app import main

if __name__ == "__main__":
    sys.exit(main())
