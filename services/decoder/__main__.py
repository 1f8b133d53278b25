"""``python -m services.decoder``."""

import sys

from services.decoder.app import main

if __name__ == "__main__":
    sys.exit(main())
