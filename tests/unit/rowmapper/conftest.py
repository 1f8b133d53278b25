"""The tests of the row mapper run twice: with the kernel, where it is built, and with the reference."""

from collections.abc import Iterator

import pytest

from millrace import kernel


@pytest.fixture(autouse=True, scope="module", params=["kernel", "reference"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "kernel" and not all(map(kernel.built, kernel.MODULES)):
        pytest.skip("the kernel is not built (make kernel)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_enabled", request.param == "kernel")
        yield
