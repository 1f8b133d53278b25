"""``python -m millrace.cli``: the command ``millrace``."""

from millrace.cli import main

main(prog_name="millrace")
