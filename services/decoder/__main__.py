"""``python -m services.decoder``."""

import sys

from millrace.runtime.imports import uncollected

with uncollected():
    from services.decoder.app import main

if __name__ == "__main__":
    sys.exit(main())
