"""Which server wrote a log, by the version that its format description or a connection gives."""

import re
from dataclasses import dataclass
from typing import Final, Self

_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """A server; ``version`` is such as (8, 0, 34), empty where it is not known."""

    mariadb: bool = False
    version: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read a version, such as 10.11.6-MariaDB-log."""
        # Before 11.0 replicas were told 5.5.5-10.2.11-MariaDB.
        found = _NUMBERS.search((text or "").removeprefix("5.5.5-"))
        return cls("mariadb" in (text or "").lower(), tuple(map(int, found.groups())) if found else ())
