"""How far the demo is: one table that is drawn again and again on a terminal, plain lines elsewhere."""

import time
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

_LINE_INTERVAL_S: Final = 5.0


class Display:
    """Prints a line per step, and shows figures that change while a ``with`` block runs."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._started = time.monotonic()
        self._live: Live | None = None
        self._last_line = 0.0

    def say(self, message: str) -> None:
        """Write a line with the time since the start."""
        elapsed = int(time.monotonic() - self._started)
        self._console.print(Text.assemble((f"{elapsed // 60}:{elapsed % 60:02}  ", "dim"), message))

    def plain(self, text: str) -> None:
        """Write lines as they are."""
        self._console.print(Text(text))

    def figures(self, figures: dict[str, int], final: bool = False) -> None:
        """Show named figures: in place on a terminal, else a line now and then and the last time."""
        if self._live is not None:
            self._live.update(_table(figures))
        elif final or time.monotonic() - self._last_line > _LINE_INTERVAL_S:
            self._last_line = time.monotonic()
            self.say(", ".join(f"{name} {number:,}" for name, number in figures.items()))

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _table(figures: dict[str, int]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column()
    most = max([*figures.values(), 1])
    for name, number in figures.items():
        bar = Text("█" * round(40 * number / most), style="cyan")
        table.add_row(name, f"{number:,}", bar)
    return table
