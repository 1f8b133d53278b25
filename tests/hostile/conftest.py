"""Peers that misbehave, on loopback; nothing here needs a network."""

from collections.abc import Iterator

import pytest

from .commands import Commands


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """A process that runs ``millrace …``, one command after the other."""
    with Commands() as running:
        yield running
