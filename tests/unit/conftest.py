"""Fixtures of the unit tests."""

import os
from collections.abc import Iterator

import pytest

from millrace import kernel


@pytest.fixture(scope="module", params=["kernel", "reference"])
def either_codec(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs twice: with the kernel, where it is built, and with the reference."""
    if request.param == "kernel" and not all(map(kernel.built, kernel.MODULES)):
        pytest.skip("the kernel is not built (make kernel): the reference is tested alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_enabled", request.param == "kernel")
        yield


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment is a setting of Millrace."""
    for name in [name for name in os.environ if name.startswith("MILLRACE_")]:
        monkeypatch.delenv(name)
