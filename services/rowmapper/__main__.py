"""``python -m services.rowmapper``."""

import sys

from services.rowmapper.app import main

if __name__ == "__main__":
    sys.exit(main())
