"""Images of values, made at random from their fields: valid ones, those at the limits, and some beyond them.

What is valid is said here, by the limits in the servers' manuals, and not by the codec.
"""

import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from millrace.binlog.columns import Column, ColumnType
from tests.columns import column

__all__ = ["COLUMNS", "Image", "some_images"]

T = ColumnType
_DIGITS = range(7)
COLUMNS: tuple[Column, ...] = (
    column(T.DATE),
    column(T.YEAR),
    *(
        column(kind, digits)
        for kind in (T.TIME2, T.DATETIME2, T.TIMESTAMP2, T.TIME, T.DATETIME, T.TIMESTAMP)
        for digits in _DIGITS
    ),
    *(column(T.BIT, bits) for bits in (1, 7, 8, 9, 17, 63, 64)),
    *(column(T.NEWDECIMAL, *of) for of in ((1, 0), (4, 2), (10, 0), (10, 10), (19, 5), (38, 9), (65, 30))),
    *(
        column(kind, unsigned=unsigned, sign_known=True)
        for kind in (T.TINY, T.SHORT, T.INT24, T.LONG, T.LONGLONG)
        for unsigned in (False, True)
    ),
    column(T.FLOAT, 4),
    column(T.DOUBLE, 8),
)


class Image(NamedTuple):
    """The bytes of a value, and the text that the server shows for it; None where no server writes it."""

    payload: bytes
    text: str | None


class _Fields:
    """Chooses numbers up to their limits; at most one of them, if it is to be so, beyond its own."""

    def __init__(self, chance: random.Random, *, beyond: bool) -> None:
        self._chance = chance
        self._wanted = beyond
        self.is_beyond = False

    def number(self, most: int, room: int, *, last: bool = False) -> int:
        """Choose a number up to ``most``; ``room`` is the largest that the form has room for."""
        chance = self._chance
        if self._wanted and room > most and (last or chance.random() < 0.2):
            self._wanted, self.is_beyond = False, True
            return chance.choice((most + 1, room, chance.randint(most + 1, room)))
        return chance.choice((0, 1 if most else 0, most, chance.randint(0, most)))

    def fraction(self, digits: int, room: int | None = None, step: int = 1) -> tuple[int, int]:
        """Choose a fraction of ``digits`` digits; return it in the units that are stored, and in its own."""
        most = 10**digits - 1
        if self._wanted and step > 1 and self._chance.random() < 0.5:  # a digit more than the column has
            self._wanted, self.is_beyond = False, True
            units = self._chance.randint(0, most) * step + self._chance.randint(1, step - 1)
            return units, units // step
        limit = most if room is None else room // step
        chosen = self.number(most, limit, last=True)
        return chosen * step, chosen


def images(chance: random.Random, one: Column, count: int) -> Iterator[Image]:
    """Make images of a column, about every third of them beyond a limit."""
    for number in range(count):
        fields = _Fields(chance, beyond=number % 3 == 2)
        payload, text = _MAKERS[one.type](fields, chance, one)
        yield Image(payload, None if fields.is_beyond else text)


def _fraction(digits: int, units: int) -> str:
    return f".{units:0{digits}d}" if digits else ""


def _date(fields: _Fields, _chance: random.Random, _one: Column) -> tuple[bytes, str]:
    year, month, day = fields.number(9999, 32767), fields.number(12, 15, last=True), fields.number(31, 31)
    return (year << 9 | month << 5 | day).to_bytes(3, "little"), f"{year:04d}-{month:02d}-{day:02d}"


def _year(_fields: _Fields, chance: random.Random, _one: Column) -> tuple[bytes, str]:
    number = chance.choice((0, 1, 255, chance.randrange(256)))
    return bytes([number]), f"{number + 1900 if number else 0:04d}"


def _time2(fields: _Fields, chance: random.Random, one: Column) -> tuple[bytes, str]:
    digits: int = one.metadata.digits  # type: ignore[union-attr] - it is a FractionMetadata
    size = (digits + 1) // 2
    hour, minute, second = fields.number(838, 1023), fields.number(59, 63), fields.number(59, 63)
    if not digits and not fields.is_beyond:
        second = fields.number(59, 63, last=True)
    units, shown = fields.fraction(digits, 256**size - 1, 10 if digits % 2 else 1) if digits else (0, 0)
    packed = (hour << 12 | minute << 6 | second) << 8 * size | units
    negative = packed > 0 and chance.random() < 0.5
    zero = 0x800000 << 8 * size
    text = f"{'-' * negative}{hour:02d}:{minute:02d}:{second:02d}{_fraction(digits, shown)}"
    return (zero - packed if negative else zero + packed).to_bytes(3 + size, "big"), text


def _time(fields: _Fields, chance: random.Random, one: Column) -> tuple[bytes, str]:
    digits: int = one.metadata.digits  # type: ignore[union-attr] - it is a FractionMetadata
    negative = chance.random() < 0.5
    if digits:
        unit, size = 10**digits, (3, 4, 4, 5, 5, 5, 6)[digits]
        most = 839 * 3600 * unit - 1
        room = 256**size - 1 - 839 * 3600 * unit
        number = fields.number(most, most if negative else room, last=True)
        seconds, units = divmod(number, unit)
        payload = (839 * 3600 * unit + (-number if negative else number)).to_bytes(size, "big")
    else:
        hour, minute, second = fields.number(837, 838), fields.number(59, 85), fields.number(59, 99)
        if hour == 838:
            fields.is_beyond = minute > 59 or second > 59
        seconds, units, number = hour * 3600 + minute * 60 + second, 0, hour * 10_000 + minute * 100 + second
        payload = (-number if negative else number).to_bytes(3, "little", signed=True)
    sign = "-" * (negative and number > 0)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return payload, f"{sign}{clock}{_fraction(digits, units)}"


def _datetime2(fields: _Fields, _chance: random.Random, one: Column) -> tuple[bytes, str]:
    digits: int = one.metadata.digits  # type: ignore[union-attr] - it is a FractionMetadata
    size = (digits + 1) // 2
    year, month, day = fields.number(9999, 10081), fields.number(12, 12), fields.number(31, 31)
    hour, minute = fields.number(23, 31), fields.number(59, 63)
    second = fields.number(59, 63, last=not digits)
    units, shown = fields.fraction(digits, 256**size - 1, 10 if digits % 2 else 1) if digits else (0, 0)
    packed = 1 << 39 | (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
    text = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
    return packed.to_bytes(5, "big") + units.to_bytes(size, "big"), text + _fraction(digits, shown)


def _datetime(fields: _Fields, _chance: random.Random, one: Column) -> tuple[bytes, str]:
    digits: int = one.metadata.digits  # type: ignore[union-attr] - it is a FractionMetadata
    if digits:
        unit, size = 10**digits, (8, 6, 6, 7, 7, 7, 8)[digits]
        year_units = 13 * 32 * 86_400 * unit
        year = fields.number(9999, min(256**size // year_units - 1, 20_000), last=True)
        numbers = [fields.number(most, most) for most in (12, 31, 23, 59, 59, unit - 1)]
    else:
        unit = 1
        year = fields.number(9999, 1_000_000)
        numbers = [fields.number(most, 99) for most in (12, 31, 23, 59)]
        numbers += [fields.number(59, 99, last=True), 0]
    month, day, hour, minute, second, units = numbers
    text = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}{_fraction(digits, units)}"
    if not digits:
        date, time = (year * 100 + month) * 100 + day, (hour * 100 + minute) * 100 + second
        return (date * 1_000_000 + time).to_bytes(8, "little"), text
    seconds = (((year * 13 + month) * 32 + day) * 24 + hour) * 3600 + minute * 60 + second
    return (seconds * unit + units).to_bytes(size, "big"), text


def _seconds(fields: _Fields) -> int:
    return 1 + fields.number((1 << 32) - 2, (1 << 32) - 2)


def _timestamp(fields: _Fields, _chance: random.Random, one: Column) -> tuple[bytes, str]:
    """Seconds since 1970 are the text here."""
    digits: int = one.metadata.digits  # type: ignore[union-attr] - it is a FractionMetadata
    seconds = _seconds(fields)
    if not digits:
        order: Any = "big" if one.type is T.TIMESTAMP2 else "little"
        return seconds.to_bytes(4, order), str(seconds)
    if one.type is T.TIMESTAMP2:
        size, step = (digits + 1) // 2, 10 if digits % 2 else 1
    else:
        size, step = (0, 1, 1, 2, 2, 3, 3)[digits], 1
    units, shown = fields.fraction(digits, 256**size - 1, step)
    return seconds.to_bytes(4, "big") + units.to_bytes(size, "big"), f"{seconds}{_fraction(digits, shown)}"


def _bit(fields: _Fields, _chance: random.Random, one: Column) -> tuple[bytes, str]:
    bits: int = one.metadata.bits  # type: ignore[union-attr] - it is a BitMetadata
    size = (bits + 7) // 8
    number = fields.number((1 << bits) - 1, (1 << 8 * size) - 1, last=True)
    return number.to_bytes(size, "big"), str(number)


def _decimal(fields: _Fields, chance: random.Random, one: Column) -> tuple[bytes, str]:
    precision, scale = one.metadata.precision, one.metadata.scale  # type: ignore[union-attr] - DecimalMetadata
    whole, part = divmod(precision - scale, 9), divmod(scale, 9)
    counts = [whole[1]] * (whole[1] > 0) + [9] * (whole[0] + part[0]) + [part[1]] * (part[1] > 0)
    payload, text = b"", ""
    for index, digits in enumerate(counts):
        size = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[digits]
        room = (1 << 8 * size - (index == 0)) - 1
        group = fields.number(10**digits - 1, room, last=index == len(counts) - 1)
        payload += group.to_bytes(size, "big")
        text += f"{group:0{digits}d}"
    shown = text[: len(text) - scale].lstrip("0") or "0"
    negative = text.strip("0") != "" and chance.random() < 0.5
    stored = bytes([payload[0] ^ 0x80]) + payload[1:]
    if negative:
        stored = bytes(byte ^ 0xFF for byte in stored)
    return stored, f"{'-' * negative}{shown}" + (f".{text[len(text) - scale :]}" if scale else "")


def _integer(_fields: _Fields, chance: random.Random, one: Column) -> tuple[bytes, str]:
    size = {T.TINY: 1, T.SHORT: 2, T.INT24: 3, T.LONG: 4, T.LONGLONG: 8}[one.type]
    most = (1 << 8 * size) - 1
    number = chance.choice((0, 1, most, most >> 1, (most >> 1) + 1, chance.randint(0, most)))
    signed = number - most - 1 if number > most >> 1 and not one.unsigned else number
    return number.to_bytes(size, "little"), str(signed)


def _real(fields: _Fields, chance: random.Random, one: Column) -> tuple[bytes, str]:
    """Bits below the exponent of infinity are a number."""
    size, exponent = (4, 0xFF << 23) if one.type is T.FLOAT else (8, 0x7FF << 52)
    most = (1 << 8 * size - 1) - 1
    bits = fields.number(exponent - 1, most, last=True)
    negative = bits > 0 and chance.random() < 0.5
    payload = (bits | negative << 8 * size - 1).to_bytes(size, "little")
    return payload, repr(struct.unpack("<f" if size == 4 else "<d", payload)[0])


_MAKERS: dict[ColumnType, Any] = {
    T.DATE: _date,
    T.YEAR: _year,
    T.TIME2: _time2,
    T.DATETIME2: _datetime2,
    T.TIMESTAMP2: _timestamp,
    T.TIME: _time,
    T.DATETIME: _datetime,
    T.TIMESTAMP: _timestamp,
    T.BIT: _bit,
    T.NEWDECIMAL: _decimal,
    **dict.fromkeys((T.FLOAT, T.DOUBLE), _real),
    **dict.fromkeys((T.TINY, T.SHORT, T.INT24, T.LONG, T.LONGLONG), _integer),
}


def some_images(seed: int, one: Column, count: int) -> Sequence[Image]:
    """Return images of a column that a seed names."""
    return list(images(random.Random(f"{seed} {one}"), one, count))
