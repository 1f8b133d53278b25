"""Text from elsewhere, made fit for one line of a log or a terminal."""

__all__ = ["one_line"]

_WIDTH = 300


def one_line(text: str, width: int = _WIDTH) -> str:
    """Return at most ``width`` characters of a text, each of which can be printed; others as escapes."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: width + 1])
    return plain if len(plain) <= width else plain[: width - 1] + "…"
