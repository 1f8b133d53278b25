"""Puts the helpers of this folder on the path: tests are imported by their file, not as a package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
