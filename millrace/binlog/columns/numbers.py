"""Numbers: integers of 1, 2, 3, 4 and 8 bytes, DECIMAL, FLOAT, DOUBLE, BIT, YEAR.

Integers and reals are little-endian. DECIMAL is MySQL's ``decimal2bin`` (``strings/decimal.cc``): groups of
nine digits in four big-endian bytes, counted from the point outwards, the rest of each side in as few bytes
as hold it; the first bit is inverted, and all bits of a negative number.
"""

import math
import re
import struct
from decimal import Decimal
from typing import Any

from millrace.binlog.columns.column import BitMetadata, Column, DecimalMetadata, NoMetadata, RealMetadata
from millrace.binlog.columns.declaration import (
    AvroOptions,
    AvroType,
    CatalogColumn,
    ColumnCodec,
    ColumnKind,
    Convert,
    MetadataLayout,
    Native,
    NativeKind,
    Print,
    SelectedKind,
    Servers,
    always,
    declare,
    in_catalog,
    one_byte_metadata,
    semantic,
)
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import EncodeError, InvalidValueError, UnrepresentableError

__all__ = ["DecimalFormat", "Integer", "format_double", "format_float", "short_float", "signed_bytes"]


def signed_bytes(value: int) -> bytes:
    """Write an integer in as few bytes of big-endian two's complement as hold it (Avro's decimal)."""
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


_WIDTHS = {
    ColumnType.TINY: (1, "b", "tinyint", "TINYINT"),
    ColumnType.SHORT: (2, "h", "smallint", "SHORTINT"),
    ColumnType.INT24: (3, "3s", "mediumint", "MEDIUMINT"),
    ColumnType.LONG: (4, "i", "int", "INT"),
    ColumnType.LONGLONG: (8, "q", "bigint", "LONGINT"),
}
"""Size in bytes, struct code, and the name in SQL and in mysqlbinlog."""


for _kind, _entry in _WIDTHS.items():
    in_catalog({_entry[2]: always(NoMetadata())}, _kind)


@declare(ColumnType.TINY, ColumnType.SHORT, ColumnType.INT24, ColumnType.LONG, ColumnType.LONGLONG)
class Integer(ColumnCodec):
    """TINYINT to BIGINT: an integer, signed or not as the table map or the catalog says."""

    signedness = Servers.ALL
    kind = ColumnKind.NUMBER

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.size, code, self.name, self._printed = _WIDTHS[column.type]
        self.signed = not column.unsigned
        self.sign_known = column.sign_known
        self.selected = SelectedKind.SIGNED if self.signed else SelectedKind.UNSIGNED
        self.struct_code = code if self.signed or self.size == 3 else code.upper()
        sql_type = SqlType.parse(column.sql_type or self.name)
        self.zerofill = sql_type.argument(0) if "zerofill" in sql_type.attributes else 0

    def decode(self, payload: Any) -> int:
        """Return an int."""
        if self.size == 3:
            return int.from_bytes(payload, "little", signed=self.signed)
        value: int = payload
        return value

    def encode(self, value: int) -> int | bytes:
        """Take an int in the range of the type."""
        if self.size == 3:
            try:
                return value.to_bytes(3, "little", signed=self.signed)
            except OverflowError as error:
                raise EncodeError(f"{value} is out of range for {self.sql_type()}") from error
        return value

    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return int up to 31 bits, long up to 63, and for BIGINT UNSIGNED what the options say."""
        if self.size == 8 and not self.signed:
            if options.bigint_unsigned == "decimal":
                return {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
            return options.bigint_unsigned
        if self.size == 8 or (self.size == 4 and not self.signed):
            return "long"
        is_short = self.size == 1 or (self.size == 2 and self.signed)
        return {"type": "int", "connect.type": "int16"} if is_short else "int"

    def avro_decoder(self, options: AvroOptions) -> Convert | None:
        """Convert 24-bit and unsigned 64-bit integers; all others are what they are.

        Where the sign is not known, a value that would be another one with it than without is refused.
        """
        if not self.sign_known:
            return self._certain
        if self.size == 3:
            return self.decode
        if self.size == 8 and not self.signed:
            converts: dict[str, Convert] = {"decimal": signed_bytes, "long": _as_long, "string": str}
            return converts[options.bigint_unsigned]
        return None

    def _certain(self, payload: Any) -> int:
        value = self.decode(payload)
        if value < 0:
            raise UnrepresentableError(f"{self.text(value)}: it is not known whether the column is unsigned")
        return value

    def native(self, options: AvroOptions) -> Native | None:
        """Take integers as they are, except BIGINT UNSIGNED."""
        if not self.sign_known:
            return None
        if self.signed:
            return Native(NativeKind.SIGNED)
        if self.size < 8:
            return Native(NativeKind.UNSIGNED)
        kinds = {
            "decimal": NativeKind.UNSIGNED_DECIMAL,
            "long": NativeKind.UNSIGNED,
            "string": NativeKind.UNSIGNED_TEXT,
        }
        return Native(kinds[options.bigint_unsigned])

    def from_default(self, text: str) -> int:
        """Take decimal digits in the range of the type."""
        value = int(_matched(_INTEGER, text)[1])
        bits = 8 * self.size
        if not (-(1 << bits - 1) <= value < 1 << bits - 1 if self.signed else 0 <= value < 1 << bits):
            raise ValueError(f"{text} is out of range for {self.sql_type()}")
        return value

    def text(self, value: int) -> str:
        """Write decimal digits, with zeros in front where the catalog says ZEROFILL.

        Where the sign is not known, the unsigned reading follows in brackets if it differs.
        """
        if value < 0 and not self.sign_known:
            return f"{value} ({value + (1 << 8 * self.size)})"
        return str(value).zfill(self.zerofill)

    def from_selected(self, value: bytes) -> int:
        """Read decimal digits."""
        return int(value)

    def printed_type(self) -> str:
        """Name the type without its sign, which mysqlbinlog does not know."""
        return self._printed

    def printer(self) -> Print:
        """Write the signed number, with the unsigned reading in brackets where that differs."""
        full = 1 << 8 * self.size
        half = full >> 1

        def write(value: int) -> bytes:
            value &= full - 1
            return b"%d" % value if value < half else b"%d (%d)" % (value - full, value)

        if self.size == 3:
            return lambda payload: write(int.from_bytes(payload, "little"))
        return write

    def sql_type(self) -> str:
        """Write the type with UNSIGNED."""
        return self.name if self.signed else f"{self.name} unsigned"

    def sql_literal(self, value: int) -> str:
        """Write decimal digits."""
        return str(value)


def _as_long(value: int) -> int:
    if value >= 1 << 63:
        raise UnrepresentableError(f"{value} is too large for a long")
    return value


_INTEGER = re.compile(r"([+-]?\d{1,20})(?:\.0*)?", re.ASCII)
_DECIMAL = re.compile(r"([+-]?\d{0,65})(?:\.(\d{0,65}))?(?<=\d)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d{1,400}\.?\d{0,400}|\.\d{1,400})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_SELECTED_DECIMAL = re.compile(rb"-?[0-9]+(\.[0-9]+)?")
_BITS = re.compile(r"b'([01]{1,64})'|\d{1,20}", re.ASCII)
_YEAR = re.compile(r"\d{4}", re.ASCII)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"{text} is not such a number")
    return found


_BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


class DecimalFormat:
    """The binary form of DECIMAL(precision, scale), ``size`` bytes, as MySQL's ``decimal2bin`` writes it."""

    __slots__ = ("_all", "_groups", "_half", "precision", "scale", "size")

    def __init__(self, precision: int, scale: int) -> None:
        if not (0 <= scale <= precision <= 65 and precision):
            raise InvalidValueError(f"there is no DECIMAL({precision},{scale})")
        whole_nines, whole_rest = divmod(precision - scale, 9)
        part_nines, part_rest = divmod(scale, 9)
        digits = (
            [whole_rest] * (whole_rest > 0) + [9] * (whole_nines + part_nines) + [part_rest] * (part_rest > 0)
        )
        self.precision = precision
        self.scale = scale
        self.size = sum(_BYTES_OF_DIGITS[count] for count in digits)
        self._half = 1 << (self.size * 8 - 1) if self.size else 0
        self._all = (1 << self.size * 8) - 1
        groups = []
        shift, weight = self.size * 8, precision
        for count in digits:
            width = _BYTES_OF_DIGITS[count] * 8
            shift -= width
            weight -= count
            groups.append((shift, (1 << width) - 1, 10**count, 10**weight))
        self._groups = tuple(groups)

    def unscaled(self, payload: bytes) -> int:
        """Read the number times 10^scale. A negative zero comes out as 0."""
        bits = int.from_bytes(payload, "big") ^ self._half
        negative = bits >= self._half
        if negative:
            bits ^= self._all
        value = 0
        for shift, mask, limit, weight in self._groups:
            group = bits >> shift & mask
            if group >= limit:
                raise InvalidValueError(f"{payload.hex()} is not a DECIMAL({self.precision},{self.scale})")
            value += group * weight
        return -value if negative else value

    def decode(self, payload: bytes) -> Decimal:
        """Read the number with exactly ``scale`` digits after the point."""
        value = self.unscaled(payload)
        negative = int.from_bytes(payload, "big") < self._half
        return Decimal((int(negative), tuple(map(int, str(abs(value)))), -self.scale))

    def encode(self, value: Decimal) -> bytes:
        """Write the number; raise :class:`InvalidValueError` where it has more digits than the type."""
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            raise EncodeError(f"{value} is not a number")
        unscaled = int("".join(map(str, digits)) or "0")
        shift = exponent + self.scale
        unscaled, lost = (unscaled * 10**shift, 0) if shift >= 0 else divmod(unscaled, 10**-shift)
        if lost or unscaled >= 10**self.precision:
            raise EncodeError(f"{value} does not fit DECIMAL({self.precision},{self.scale})")
        bits = 0
        for shift, _, _, weight in self._groups:
            group, unscaled = divmod(unscaled, weight)
            bits |= group << shift
        bits = self._all ^ bits ^ self._half if sign else bits ^ self._half
        return bits.to_bytes(self.size, "big")


def _precision(column: CatalogColumn) -> DecimalMetadata:
    given = column.type.arguments
    precision, scale, *_ = (*given, *(10, 0)[len(given) :])
    return DecimalMetadata(precision, scale)


@declare(ColumnType.NEWDECIMAL, catalog={"decimal": _precision})
class NewDecimal(ColumnCodec):
    """DECIMAL: :class:`decimal.Decimal` with the column's scale."""

    metadata_layout = MetadataLayout(
        2,
        "precision, scale (uint8 each)",
        lambda raw: DecimalMetadata(raw[0], raw[1]),
        lambda metadata: bytes((metadata.precision, metadata.scale)),
        "big",
    )
    signedness = Servers.ALL
    kind = ColumnKind.NUMBER
    selected = SelectedKind.DECIMAL

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        metadata = column.metadata
        assert isinstance(metadata, DecimalMetadata)
        self.format = DecimalFormat(metadata.precision, metadata.scale)
        self.struct_code = f"{self.format.size}s"

    def decode(self, payload: bytes) -> Decimal:
        """Return a Decimal with the column's scale; a negative zero keeps its sign."""
        return self.format.decode(payload)

    def encode(self, value: Decimal) -> bytes:
        """Take a Decimal that fits precision and scale."""
        return self.format.encode(value)

    def _is_string(self, options: AvroOptions) -> bool:
        if options.decimal == "decimal":
            return self.format.precision > 38 and options.wide_decimal == "string"
        return options.decimal == "string"

    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return decimal up to 38 digits; above that a string, unless the options ask for something else."""
        if self._is_string(options):
            return "string"
        if options.decimal == "double":
            return "double"
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": self.format.precision,
            "scale": self.format.scale,
        }

    def avro_decoder(self, options: AvroOptions) -> Convert:
        """Convert to bytes in two's complement, to text, or to the nearest double."""
        if self._is_string(options):
            return lambda payload: self.text(self.decode(payload))
        if options.decimal == "double":
            return lambda payload: float(self.decode(payload))
        unscaled = self.format.unscaled

        def convert(payload: bytes) -> bytes:
            value = unscaled(payload)
            return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)

        return convert

    def native(self, options: AvroOptions) -> Native | None:
        """Read the groups of digits."""
        if options.decimal == "double":
            return None
        kind = NativeKind.DECIMAL_TEXT if self._is_string(options) else NativeKind.DECIMAL
        return Native(kind, self.format.precision, self.format.scale)

    def from_default(self, text: str) -> Decimal:
        """Take a number of no more digits after the point than the type has."""
        whole, fraction = _matched(_DECIMAL, text).groups(default="")
        if len(fraction.rstrip("0")) > self.format.scale:
            raise ValueError(f"{text} is rounded to {self.sql_type()}")
        return Decimal(f"{whole}.{fraction}")

    def text(self, value: Decimal) -> str:
        """Write all digits of the scale."""
        return f"{value:f}"

    def from_selected(self, value: bytes) -> Decimal:
        """Read digits with a point."""
        if (
            _SELECTED_DECIMAL.fullmatch(value) is None
        ):  # an exponent may stand for more digits than memory holds
            raise ValueError(f"{repr(value)[:60]} is not a DECIMAL")
        return Decimal(value.decode("ascii"))

    def printed_type(self) -> str:
        """Name the type with precision and scale."""
        return f"DECIMAL({self.format.precision},{self.format.scale})"

    def printer(self) -> Print:
        """Write all digits of the scale; no sign of a zero."""
        unscaled, scale, one = self.format.unscaled, self.format.scale, 10**self.format.scale

        def write(payload: bytes) -> bytes:
            value = unscaled(payload)
            if not scale:
                return b"%d" % value
            sign = b"-" if value < 0 else b""
            return b"%b%d.%0*d" % (sign, abs(value) // one, scale, abs(value) % one)

        return write

    def sql_type(self) -> str:
        """Write the type with its precision and scale."""
        text = f"decimal({self.format.precision},{self.format.scale})"
        return f"{text} unsigned" if self.column.unsigned else text

    def sql_literal(self, value: Decimal) -> str:
        """Write all digits of the scale."""
        return self.text(value)


def _format_real(digits: str, point: int, *, negative: bool) -> str:
    """Write 0.``digits`` times 10^``point`` as the servers' ``my_gcvt`` does when it has room enough."""
    if -14 <= point <= 15 or 15 < point < len(digits):
        if point <= 0:
            text = "0." + "0" * -point + digits
        elif point >= len(digits):
            text = digits + "0" * (point - len(digits))
        else:
            text = f"{digits[:point]}.{digits[point:]}"
    else:
        text = digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + f"e{point - 1}"
    return "-" + text if negative else text


def _shortest(text: str) -> tuple[str, int, bool]:
    """Take apart a number in the form of ``repr`` or ``%e``: digits, place of the point, sign."""
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits))
    point = len(written) + exponent
    return written.rstrip("0"), point, sign == 1


def format_double(value: float) -> str:
    """Write a DOUBLE as MySQL does: the shortest digits that give it back; 1e15, but 100000000000000."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    digits, point, negative = _shortest(repr(value))
    return _format_real(digits, point, negative=negative)


def format_float(value: float) -> str:
    """Write a FLOAT as MySQL does: six digits at most."""
    return format_double(float(f"{value:.5e}"))


def short_float(value: float) -> float:
    """Return a number of 32 bits with as few digits as tell it from its neighbours."""
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
        except OverflowError:
            continue
    return float(f"{value:.9g}")


in_catalog({"double": always(RealMetadata(8))}, ColumnType.DOUBLE)


@declare(ColumnType.FLOAT, ColumnType.DOUBLE, catalog={"float": always(RealMetadata(4))})
class Real(ColumnCodec):
    """FLOAT and DOUBLE: a float; -0.0 stays -0.0. The servers store neither NaN nor infinity."""

    metadata_layout = one_byte_metadata(RealMetadata, "size", "size of the value, 4 or 8 (uint8)")
    signedness = Servers.ALL
    kind = ColumnKind.REAL
    selection = "{}*1e0"  # a FLOAT as a double, which has all its digits
    selected = SelectedKind.REAL

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.name, self.struct_code = ("float", "f") if column.type is ColumnType.FLOAT else ("double", "d")
        arguments = SqlType.parse(column.sql_type or self.name).arguments
        self.decimals = arguments[1] if len(arguments) > 1 else None

    def decode(self, payload: float) -> float:
        """Return a float."""
        if not math.isfinite(payload):
            raise InvalidValueError(f"{payload} is not a {self.name.upper()}")
        return payload

    def encode(self, value: float) -> float:
        """Take a float."""
        return value

    def avro_type(self, options: AvroOptions) -> AvroType:  # noqa: ARG002 - the same for all options
        """Return float or double."""
        return self.name

    def avro_decoder(self, options: AvroOptions) -> Convert:  # noqa: ARG002 - the same for all options
        """Leave the number as it is."""
        return self.decode

    def native(self, options: AvroOptions) -> Native:  # noqa: ARG002 - the same for all options
        """Take the bytes."""
        return Native(NativeKind.REAL)

    def from_default(self, text: str) -> float:
        """Take a number, unless it is rounded as in FLOAT(M,D)."""
        value = float(_matched(_NUMBER, text)[0])
        if self.decimals is not None or not math.isfinite(value):
            raise ValueError(f"{text} is rounded to {self.sql_type()}")
        return value

    def text(self, value: float) -> str:
        """Write the number as the server shows it, FLOAT(M,D) with D digits after the point."""
        if self.decimals is not None:
            return f"{value:.{self.decimals}f}"
        return format_float(value) if self.name == "float" else format_double(value)

    def from_selected(self, value: bytes) -> float:
        """Read a number."""
        return float(value)

    def to_json(self, value: float) -> float:
        """Return the number with as few digits as tell it from others."""
        return short_float(value) if self.name == "float" else value

    def printed_type(self) -> str:
        """Name the type without its sign."""
        return self.name.upper()

    def printer(self) -> Print:
        """Write as many digits as mysqlbinlog does."""
        form = b"%-20g" if self.name == "float" else b"%.20g"
        return lambda payload: form % self.decode(payload)

    def sql_type(self) -> str:
        """Write the type with UNSIGNED."""
        return f"{self.name} unsigned" if self.column.unsigned else self.name

    def sql_literal(self, value: float) -> str:
        """Write enough digits to give the same bits again."""
        return f"{value:.9g}" if self.name == "float" else repr(value)


@declare(ColumnType.BIT, catalog={"bit": lambda column: BitMetadata(column.type.argument(1))})
class Bit(ColumnCodec):
    """BIT(1) to BIT(64): an int, big-endian in as few bytes as hold the bits."""

    metadata_layout = MetadataLayout(
        2,
        "bits modulo 8, bits div 8 (uint8 each)",
        lambda raw: BitMetadata(raw[1] * 8 + raw[0]),
        lambda metadata: bytes((metadata.bits % 8, metadata.bits // 8)),
    )
    selected = SelectedKind.BIT

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        metadata = column.metadata
        assert isinstance(metadata, BitMetadata)
        self.bits = metadata.bits
        self.size = (self.bits + 7) // 8
        self.first = 0xFF >> -self.bits % 8
        self.struct_code = f"{self.size}s"

    def decode(self, payload: bytes) -> int:
        """Return an int."""
        return int.from_bytes(self._checked(payload), "big")

    def _checked(self, payload: bytes) -> bytes:
        """Return the bytes; raise InvalidValueError if they have more bits than the column."""
        if payload[0] > self.first:
            raise InvalidValueError(f"{payload.hex()} is not a {self.sql_type().upper()}")
        return payload

    def encode(self, value: int) -> bytes:
        """Take an int."""
        try:
            return value.to_bytes(self.size, "big")
        except OverflowError as error:
            raise EncodeError(f"{value} is out of range for bit({self.bits})") from error

    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return bytes, the most significant first; as Debezium, a boolean or bytes with the least first."""
        if options.bit == "bytes":
            return "bytes"
        return (
            "boolean" if self.bits == 1 else semantic("bytes", "io.debezium.data.Bits", length=str(self.bits))
        )

    def avro_decoder(self, options: AvroOptions) -> Convert:
        """Leave the bytes as they are, or turn them."""
        checked = self._checked
        if options.bit == "bytes":
            return checked
        if self.bits == 1:
            return lambda payload: any(checked(payload))
        return lambda payload: checked(payload)[::-1]

    def native(self, options: AvroOptions) -> Native | None:
        """Take the bytes."""
        return Native(NativeKind.BITS, self.first) if options.bit == "bytes" else None

    def from_default(self, text: str) -> int:
        """Take b'101', or decimal digits."""
        bits = _matched(_BITS, text)
        value = int(bits[1], 2) if bits[1] else int(text)
        if value >> self.bits:
            raise ValueError(f"{text} is out of range for {self.sql_type()}")
        return value

    def text(self, value: int) -> bytes:
        """Return the bytes that the server sends."""
        return self.encode(value)

    def from_selected(self, value: bytes) -> int:
        """Take the bytes."""
        return int.from_bytes(value, "big")

    def sql_type(self) -> str:
        """Write the type with its number of bits."""
        return f"bit({self.bits})"

    def sql_literal(self, value: int) -> str:
        """Write binary digits."""
        return f"b'{value:0{self.bits}b}'"


@declare(ColumnType.YEAR, catalog={"year": always(NoMetadata())})
class Year(ColumnCodec):
    """YEAR: an int, 0 or 1901-2155; one byte counted from 1900, 0 for the year 0000."""

    signedness = Servers.MYSQL | Servers.MARIADB
    kind = ColumnKind.NUMBER
    selected = SelectedKind.YEAR
    struct_code = "B"

    def decode(self, payload: int) -> int:
        """Return an int."""
        return payload + 1900 if payload else 0

    def encode(self, value: int) -> int:
        """Take 0 or 1901-2155."""
        if value != 0 and not 1901 <= value <= 2155:
            raise EncodeError(f"{value} is not a YEAR")
        return value - 1900 if value else 0

    def avro_type(self, options: AvroOptions) -> AvroType:  # noqa: ARG002 - the same for all options
        """Return int."""
        return semantic("int", "io.debezium.time.Year")

    def avro_decoder(self, options: AvroOptions) -> Convert:  # noqa: ARG002 - the same for all options
        """Convert as for the natural value."""
        return self.decode

    def native(self, options: AvroOptions) -> Native:  # noqa: ARG002 - the same for all options
        """Count from 1900."""
        return Native(NativeKind.YEAR)

    def from_default(self, text: str) -> int:
        """Take four digits."""
        return int(_matched(_YEAR, text)[0])

    def text(self, value: int) -> str:
        """Write four digits, or the two of YEAR(2), which MySQL 5.5 and older had."""
        return f"{value % 100:02d}" if self.column.sql_type == "year(2)" else f"{value:04d}"

    def from_selected(self, value: bytes) -> int:
        """Read digits."""
        return int(value)

    def printer(self) -> Print:
        """Count from 1900, the year 0000 too."""
        return lambda payload: b"%d" % (payload + 1900)

    def sql_type(self) -> str:
        """Write the type."""
        return "year"

    def sql_literal(self, value: int) -> str:
        """Write four digits in quotes: a bare 0 would do, a bare 70 would be 1970."""
        return f"'{value:04d}'"
