"""Checks of the schema registry."""

from collections.abc import Iterator
from typing import Final

from millrace.avro.registry import SchemaRegistry
from millrace.finding import CheckResult, error, ok, warning


def connection(registry: SchemaRegistry) -> Iterator[CheckResult]:
    """Ask for something: whether it answers, and lets us in."""
    registry.check()
    yield ok("it answers")


def compatibility(registry: SchemaRegistry) -> Iterator[CheckResult]:
    """Look whether the registry guards consumers against schemas that they cannot read."""
    level = registry.compatibility()
    if level == "NONE":
        yield warning(
            "the global level is NONE: a schema that old consumers cannot read would be accepted silently",
            'set it to BACKWARD: PUT /config with {"compatibility": "BACKWARD"}',
        )
    else:
        yield ok(level)


def mode(registry: SchemaRegistry) -> Iterator[CheckResult]:
    """Look whether schemas can be registered."""
    found = registry.mode()
    if found.startswith("READONLY"):
        yield error(f"its mode is {found}: schemas cannot be registered", "set it to READWRITE")
    else:
        yield ok(found)


CHECKS: Final = (connection, compatibility, mode)
"""Whether it answers, then how it is set up."""
