"""What ``millrace local`` says without servers."""

from pathlib import Path

import pytest

from millrace.local import LocalError
from millrace.local.commands import _only_one


def test_one_stack_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path))
    with _only_one():
        with pytest.raises(LocalError) as caught, _only_one():
            pass
        assert str(caught.value) == "it runs already: see 'millrace local status', stop it with 'down'"
    with _only_one():
        pass
