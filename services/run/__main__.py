"""``python -m services.run``."""

import sys

from services.run.app import main

if __name__ == "__main__":
    sys.exit(main())
