import pytest


@pytest.fixture(autouse=True, scope="module")
def _either_codec(either_codec: None) -> None:
    """All tests of the row mapper run with the kernel and with the reference."""
