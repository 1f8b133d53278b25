"""``python -m services.rowmapper``."""

import sys

from millrace.runtime.imports import uncollected

with uncollected():
    from services.rowmapper.app import main

if __name__ == "__main__":
    sys.exit(main())
