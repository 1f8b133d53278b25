"""``python -m services.snapshot``."""

import sys

from services.snapshot.app import main

if __name__ == "__main__":
    sys.exit(main())
