"""What the rules of selection make of a column in the records of a row topic.

A column that is dropped has no field. A masked one is a string, the same for all values and for NULL. A
hashed one is a string, HMAC-SHA-256 of the value in hexadecimal digits; a truncated one a string or bytes.
NULL stays NULL in both. Hashed is: of text its UTF-8, of bytes these, of a number its decimal digits, and of
everything else what the field would have in Avro's binary form.

What a type cannot hold goes the same way, so that nothing of such a column stands in ``unrepresentable``.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from millrace.avro import binary
from millrace.avro.binary import Writer, string
from millrace.binlog.columns.declaration import BINARY_AS, AvroType, Native, NativeKind
from millrace.binlog.errors import UnsupportedError
from millrace.selection.columns import ColumnAction, ColumnRule

_NULL: Final = b"\x00"
_SOME: Final = b"\x02"


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """How the values of a column are written under a rule.

    ``avro_type`` is the field's type, None where it has no field. ``write`` takes a plain value or None,
    ``write_lost`` the text or bytes of a value that the column's own type cannot hold; both give bytes with
    the union's branch in front. ``native`` is for the kernel where what is written is always the same.
    """

    avro_type: AvroType | None
    write: Writer
    write_lost: Callable[[str | bytes], bytes]
    native: Native | None = None

    @classmethod
    def of(cls, rule: ColumnRule, avro: AvroType) -> "ColumnValues":
        """Bind a rule to a column of this Avro type; raises UnsupportedError where it is not for such."""
        match rule.action:
            case ColumnAction.DROP:
                return cls.left_out()
            case ColumnAction.MASK:
                return cls._same("string", _SOME + string(rule.text))
            case ColumnAction.HASH:
                plain, salt = _bytes_of(avro), rule.salt

                def hashed(value: bytes) -> bytes:
                    return _SOME + string(hmac.digest(salt, value, "sha256").hex())

                return cls(
                    "string",
                    lambda value: _NULL if value is None else hashed(plain(value)),
                    lambda lost: hashed(_encoded(lost)),
                )
            case ColumnAction.TRUNCATE:
                return cls._truncated(avro, rule.length)

    @classmethod
    def left_out(cls) -> "ColumnValues":
        """Return what makes a column have no field."""
        return cls._same(None, b"")

    @classmethod
    def _same(cls, avro_type: AvroType | None, written: bytes) -> "ColumnValues":
        native = Native(NativeKind.FIXED, texts=(written,))
        return cls(avro_type, lambda _: written, lambda _: written, native)

    @classmethod
    def _truncated(cls, avro: AvroType, length: int) -> "ColumnValues":
        kind = avro["type"] if isinstance(avro, dict) else avro
        if kind not in ("string", "bytes") or (isinstance(avro, dict) and "logicalType" in avro):
            raise UnsupportedError(
                "MILLRACE_COLUMNS_TRUNCATE is for columns of text and bytes alone: mask, hash or drop this "
                "one, or narrow the rule"
            )
        write = binary.writer(["null", kind])

        def write_lost(lost: str | bytes) -> bytes:
            part = lost[:length]
            if kind == "bytes":
                return write(_encoded(part))
            return write(part if isinstance(part, str) else part.decode("ascii", "replace"))

        is_binary = isinstance(avro, dict) and BINARY_AS in avro
        return cls(
            avro if is_binary else kind,
            lambda value: write(None if value is None else value[:length]),
            write_lost,
        )


def _encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode(errors="backslashreplace")


def _bytes_of(avro: AvroType) -> Callable[[Any], bytes]:
    """Bind the way from a plain value to the bytes that are hashed."""
    kind = avro["type"] if isinstance(avro, dict) else avro
    if isinstance(avro, dict) and avro.get("logicalType") == "decimal":
        scale = avro.get("scale", 0)

        def digits(value: bytes) -> bytes:
            number = int.from_bytes(value, "big", signed=True)
            # Made of its digits, since arithmetic would round it.
            exact = Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
            return format(exact, "f").encode()

        return digits
    if kind in ("string", "bytes"):
        return _encoded
    if kind in ("int", "long"):
        return lambda value: str(value).encode()
    return binary.writer(avro)
