"""Dates and times, in the three generations that the servers have stored them.

The oldest forms (DATE, TIME, DATETIME, TIMESTAMP) are little-endian numbers whose decimal digits are the
fields. Since MySQL 5.6 TIME2, DATETIME2 and TIMESTAMP2 are big-endian and carry 0-6 digits of a second's
fraction (``sql-common/my_time.cc``). MariaDB 5.3 to 10.0, and later ones with
``mysql56_temporal_format=OFF``, write fractions under the old type codes in big-endian forms of their own,
whose digits the table map does not tell: only the catalog does (``Field_*_hires`` in MariaDB's
``sql/field.cc``).

MySQL stores dates that no calendar has: 0000-00-00, months and days that are zero, 31 February where the
mode allows it. So the natural values are :class:`Date`, :class:`DateTime` and :class:`Timestamp` rather
than those of :mod:`datetime`. TIME is a :class:`datetime.timedelta`.

The forms have room for more than servers write: a month of 13, an hour of 24, a fraction of a whole second, a
digit more than the column has. Such bytes are no value: :meth:`ColumnCodec.decode` raises
:class:`InvalidValueError`, and every view with it.
"""

import datetime as dt
import re
from abc import abstractmethod
from functools import lru_cache
from typing import Any, NamedTuple

from millrace.binlog.columns.column import Column, FractionMetadata, NoMetadata
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
    always,
    declare,
    one_byte_metadata,
    semantic,
)
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import EncodeError, InvalidValueError, UnrepresentableError

__all__ = [
    "Date",
    "DateTime",
    "Timestamp",
    "checked_datetime",
    "checked_fraction",
    "checked_time",
    "fraction_text",
    "time_text",
]

_EPOCH = dt.date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000
_HOURS = 838
"""Hours of the greatest TIME."""
_MICROSECOND = dt.timedelta(microseconds=1)
_MICRO_TIMESTAMP = "io.debezium.time.MicroTimestamp"
_CONNECT_TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"
_OLD_METADATA = MetadataLayout(0, "none", lambda _: FractionMetadata(0), lambda _: b"")
_FRACTION_METADATA = one_byte_metadata(FractionMetadata, "digits", "digits of the fraction, 0-6 (uint8)")


def _fraction(column: CatalogColumn) -> FractionMetadata:
    return FractionMetadata(column.type.argument(0))


class Date(NamedTuple):
    """A date as MySQL stores it: any field may be zero, and the day need not exist."""

    year: int
    month: int
    day: int

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.month:02d}-{self.day:02d}"


class DateTime(NamedTuple):
    """A date and time of day without a time zone; the date may be none of a calendar."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    microsecond: int = 0

    def text(self, digits: int) -> str:
        """Write it with ``digits`` digits of the fraction."""
        date = f"{self.year:04d}-{self.month:02d}-{self.day:02d}"
        time = f"{self.hour:02d}:{self.minute:02d}:{self.second:02d}"
        return f"{date} {time}" + fraction_text(self.microsecond, digits)

    def __str__(self) -> str:
        return self.text(6 if self.microsecond else 0)


class Timestamp(NamedTuple):
    """Seconds since 1970-01-01 00:00:00 UTC; 0 and no fraction is MySQL's 0000-00-00 00:00:00."""

    seconds: int
    microsecond: int = 0

    def text(self, digits: int) -> str:
        """Write it as a date and time in UTC with ``digits`` digits of the fraction."""
        if not self.seconds and not self.microsecond:
            return "0000-00-00 00:00:00" + fraction_text(0, digits)
        moment = dt.datetime.fromtimestamp(self.seconds, dt.UTC)
        return f"{moment:%Y-%m-%d %H:%M:%S}" + fraction_text(self.microsecond, digits)

    def __str__(self) -> str:
        return self.text(6 if self.microsecond else 0)


def fraction_text(microsecond: int, digits: int) -> str:
    """Write the fraction of a second after its point; nothing for no digits."""
    return f".{microsecond:06d}"[: digits + 1] if digits else ""


def time_text(value: dt.timedelta, digits: int) -> str:
    """Write a TIME with ``digits`` digits of the fraction."""
    micros = value // _MICROSECOND
    seconds, microsecond = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{'-' if micros < 0 else ''}{hour:02d}:{minute:02d}:{second:02d}" + fraction_text(
        microsecond, digits
    )


@lru_cache(maxsize=8192)
def _days(year: int, month: int, day: int) -> int:
    """Count the days from 1970-01-01; raise :class:`UnrepresentableError` for what no calendar has."""
    try:
        return dt.date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        raise UnrepresentableError(f"{Date(year, month, day)} is not a day of a calendar") from None


def checked_time(hours: int, minutes: int, seconds: int, microsecond: int) -> int:
    """Return the microseconds of a TIME without its sign; raise InvalidValueError if no server writes it."""
    if hours > _HOURS or minutes > 59 or seconds > 59:
        raise InvalidValueError(f"{hours}:{minutes:02d}:{seconds:02d} is not a TIME")
    return (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + microsecond


def _checked_date(date: Date) -> Date:
    if date.year > 9999 or date.month > 12 or date.day > 31:
        raise InvalidValueError(f"{date} is not a DATE")
    return date


def checked_datetime(moment: DateTime) -> DateTime:
    """Return a DATETIME; raise InvalidValueError if no server writes it."""
    year, month, day, hour, minute, second, _ = moment
    if year > 9999 or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise InvalidValueError(f"{moment} is not a DATETIME")
    return moment


def checked_fraction(units: int, digits: int = 6, unit: int = 1) -> int:
    """Return the microseconds of a fraction in units of ``unit`` microseconds.

    Raise InvalidValueError if it is a second or more, or has more digits than it may.
    """
    microsecond = units * unit
    if microsecond > 999_999 or microsecond % 10 ** (6 - digits):
        raise InvalidValueError(f"{microsecond} microseconds are not a second's fraction of {digits} digits")
    return microsecond


def _digits(column: Column) -> int:
    metadata = column.metadata
    assert isinstance(metadata, FractionMetadata)
    if not 0 <= metadata.digits <= 6:
        raise InvalidValueError(f"a second's fraction has 0-6 digits, not {metadata.digits}")
    return metadata.digits


_UNITS = (0, 10_000, 100, 1)
"""Microseconds in a unit of a fraction of 0-3 bytes: hundredths, ten-thousandths, millionths of a second."""


def _fraction_units(microsecond: int, size: int) -> int:
    """Count what a fraction of ``size`` bytes holds, of a number of microseconds that it holds exactly."""
    units, lost = divmod(microsecond, (1_000_000, 10_000, 100, 1)[size])
    if lost:
        raise EncodeError(f"{microsecond} microseconds do not fit {size} bytes of a fraction")
    return units


def _to_bytes(value: int, size: int, what: object) -> bytes:
    try:
        return value.to_bytes(size, "big")
    except OverflowError as error:
        raise EncodeError(f"{what} does not fit its type") from error


_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(?P<fraction>\d{0,6}))?)?", re.ASCII)
_CLOCK = re.compile(r"(\d{2,3}):(\d\d):(\d\d)(?:\.(?P<fraction>\d{0,6}))?", re.ASCII)


class _Temporal(ColumnCodec):
    """What all dates and times share: digits of the fraction, and text in quotes."""

    kind = ColumnKind.MOMENT
    name = ""

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.digits = _digits(column) if isinstance(column.metadata, FractionMetadata) else 0

    def _parts(self, pattern: re.Pattern[str], text: str) -> tuple[list[int], int]:
        """Split the literal of a default into its numbers, and the microseconds."""
        found = pattern.fullmatch(text)
        if found is None or len((found["fraction"] or "").rstrip("0")) > self.digits:
            raise ValueError(f"{text} is not a {self.sql_type()}, or is rounded to one")
        numbers = [int(part or 0) for part in found.groups()[:-1]]
        return numbers, int((found["fraction"] or "").ljust(6, "0"))

    def sql_type(self) -> str:
        """Write the type with the digits of its fraction."""
        return f"{self.name}({self.digits})" if self.digits else self.name

    def printed_type(self) -> str:
        """Name the type, with the digits of its fraction where the table map has them."""
        return f"{self.name.upper()}({self.digits})" if self.metadata_layout.size else self.name.upper()

    def printer(self) -> Print:
        """Write the text in quotes."""
        return lambda payload: b"'%b'" % str(self.text(self.decode(payload))).encode("ascii")

    def _step(self) -> int:
        """Return the number of which the stored units of the fraction are a multiple, by the digits."""
        return 10 if self.digits % 2 else 1


@declare(ColumnType.DATE, also=(ColumnType.NEWDATE,), catalog={"date": always(NoMetadata())})
class DateCodec(_Temporal):
    """DATE: a :class:`Date`; 3 bytes, day in bits 0-4, month in bits 5-8, year above."""

    name = "date"
    selected = SelectedKind.DATE
    struct_code = "3s"

    def decode(self, payload: bytes) -> Date:
        """Return a Date."""
        packed = int.from_bytes(payload, "little")
        return _checked_date(Date(packed >> 9, packed >> 5 & 15, packed & 31))

    def encode(self, value: Date) -> bytes:
        """Take a Date."""
        year, month, day = value
        if not (0 <= year <= 9999 and 0 <= month <= 12 and 0 <= day < 32):
            raise EncodeError(f"{value} is not a DATE")
        return (year << 9 | month << 5 | day).to_bytes(3, "little")

    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return days since 1970-01-01; Connect's converters take no other name beside ``date``."""
        if options.temporal == "debezium":
            return semantic("int", "io.debezium.time.Date")
        return semantic("int", "org.apache.kafka.connect.data.Date", logical="date")

    def avro_decoder(self, options: AvroOptions) -> Convert:  # noqa: ARG002 - the same for all options
        """Convert to days."""

        def convert(payload: bytes) -> int:
            packed = int.from_bytes(payload, "little")
            return _days(packed >> 9, packed >> 5 & 15, packed & 31)

        return convert

    def native(self, options: AvroOptions) -> Native:  # noqa: ARG002 - the same for all options
        """Count the days."""
        return Native(NativeKind.DATE)

    def from_default(self, text: str) -> Date:
        """Take a date without a time."""
        (year, month, day, *time), micros = self._parts(_MOMENT, text)
        if any(time) or micros:
            raise ValueError(f"{text} is cut to a date")
        return Date(year, month, day)

    def text(self, value: Date) -> str:
        """Write year, month and day."""
        return str(value)

    def from_selected(self, value: bytes) -> Date:
        """Read year, month and day."""
        return _selected_date(value)

    def printer(self) -> Print:
        """Write year, month and day with colons between them."""
        return lambda payload: b"'%04d:%02d:%02d'" % self.decode(payload)


@lru_cache(maxsize=4096)
def _selected_date(value: bytes) -> Date:
    return Date(int(value[:-6]), int(value[-5:-3]), int(value[-2:]))


def _selected_micros(fraction: bytes) -> int:
    return int(fraction.ljust(6, b"0"))


class _TimeCodec(_Temporal):
    kind = ColumnKind.TIME
    name = "time"

    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return a long: microseconds, which may be negative or exceed a day; or Connect's time of day."""
        if options.temporal == "connect":
            return semantic("int", "org.apache.kafka.connect.data.Time", logical="time-millis")
        return semantic("long", "io.debezium.time.MicroTime")

    @abstractmethod
    def micros(self, payload: bytes) -> int:
        """Read the signed number of microseconds."""

    def decode(self, payload: bytes) -> dt.timedelta:
        """Return a timedelta."""
        return dt.timedelta(microseconds=self.micros(payload))

    def avro_decoder(self, options: AvroOptions) -> Convert:
        """Convert to microseconds, or to milliseconds of a day."""
        micros = self.micros
        if options.temporal != "connect":
            return micros

        def convert(payload: bytes) -> int:
            found = micros(payload)
            if not 0 <= found < _DAY:
                raise UnrepresentableError(f"{time_text(found * _MICROSECOND, 6)} is not a time of a day")
            return found // 1000

        return convert

    def from_default(self, text: str) -> dt.timedelta:
        """Take hours, minutes and seconds."""
        (hours, minutes, seconds), micros = self._parts(_CLOCK, text.removeprefix("-"))
        if hours > 838 or minutes > 59 or seconds > 59:
            raise ValueError(f"{text} is not a TIME")
        found = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
        return -found if text.startswith("-") else found

    def text(self, value: dt.timedelta) -> str:
        """Write hours, minutes, seconds and the fraction."""
        return time_text(value, self.digits)

    def from_selected(self, value: bytes) -> dt.timedelta:
        """Read hours, minutes, seconds and a fraction."""
        whole, _, fraction = value.lstrip(b"-").partition(b".")
        hours, minutes, seconds = whole.split(b":")
        found = dt.timedelta(
            hours=int(hours),
            minutes=int(minutes),
            seconds=int(seconds),
            microseconds=_selected_micros(fraction),
        )
        return -found if value.startswith(b"-") else found


@declare(ColumnType.TIME2, catalog={"time": _fraction})
class Time2(_TimeCodec):
    """TIME since MySQL 5.6: a timedelta; 3 bytes and 0-3 of fraction, big-endian.

    The number is offset by half its range, so that negative times sort first. Above the fraction: second in
    bits 0-5, minute in bits 6-11, hour in bits 12-21.
    """

    metadata_layout = _FRACTION_METADATA
    selected = SelectedKind.TIME

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.fraction_bytes = (self.digits + 1) // 2
        self.zero = 0x800000 << 8 * self.fraction_bytes
        self.struct_code = f"{3 + self.fraction_bytes}s"

    def micros(self, payload: bytes) -> int:
        """Read the signed number of microseconds."""
        packed = int.from_bytes(payload, "big") - self.zero
        magnitude = abs(packed)
        size = self.fraction_bytes
        whole = magnitude >> 8 * size
        fraction = checked_fraction(magnitude & (1 << 8 * size) - 1, self.digits, _UNITS[size])
        micros = checked_time(whole >> 12, whole >> 6 & 63, whole & 63, fraction)
        return -micros if packed < 0 else micros

    def encode(self, value: dt.timedelta) -> bytes:
        """Take a timedelta with no more digits than the column."""
        micros = value // _MICROSECOND
        seconds, microsecond = divmod(abs(micros), 1_000_000)
        minutes, second = divmod(seconds, 60)
        size = self.fraction_bytes
        whole = minutes // 60 << 12 | minutes % 60 << 6 | second
        packed = whole << 8 * size | _fraction_units(microsecond, size)
        if minutes >= 1024 * 60:
            raise EncodeError(f"{value} is not a TIME")
        return (self.zero - packed if micros < 0 else self.zero + packed).to_bytes(3 + size, "big")

    def native(self, options: AvroOptions) -> Native | None:
        """Count the microseconds."""
        if options.temporal == "connect":
            return None
        return Native(NativeKind.TIME, self.fraction_bytes, self._step())


_TIME_HIRES_SIZES = (3, 4, 4, 5, 5, 5, 6)
_TIME_HIRES_ZERO = (838 * 3600 + 59 * 60 + 59 + 1) * 1_000_000


@declare(ColumnType.TIME, formerly="time")
class Time(_TimeCodec):
    """TIME before MySQL 5.6: a timedelta; 3 bytes, a signed number whose decimal digits are hhmmss.

    With digits of a fraction, which only MariaDB wrote: 4-6 bytes big-endian, units of the last digit
    counted from -839:00:00.
    """

    metadata_layout = _OLD_METADATA

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.size = _TIME_HIRES_SIZES[self.digits]
        self.unit: int = 10 ** (6 - self.digits)
        self.struct_code = f"{self.size}s"

    def micros(self, payload: bytes) -> int:
        """Read the signed number of microseconds."""
        if self.digits:
            micros = int.from_bytes(payload, "big") * self.unit - _TIME_HIRES_ZERO
            if abs(micros) >= _TIME_HIRES_ZERO:
                raise InvalidValueError(f"{payload.hex()} is not a TIME({self.digits})")
            return micros
        number = int.from_bytes(payload, "little", signed=True)
        hhmm, second = divmod(abs(number), 100)
        micros = checked_time(hhmm // 100, hhmm % 100, second, 0)
        return -micros if number < 0 else micros

    def encode(self, value: dt.timedelta) -> bytes:
        """Take a timedelta with no more digits than the column."""
        micros = value // _MICROSECOND
        units, lost = divmod(micros, self.unit)
        if lost:
            raise EncodeError(f"{value} has more than {self.digits} digits of a fraction")
        if self.digits:
            return _to_bytes(units + _TIME_HIRES_ZERO // self.unit, self.size, value)
        minutes, second = divmod(abs(units), 60)
        number = minutes // 60 * 10_000 + minutes % 60 * 100 + second
        if number >= 1 << 23:
            raise EncodeError(f"{value} is not a TIME")
        return (-number if micros < 0 else number).to_bytes(3, "little", signed=True)


class _DateTimeCodec(_Temporal):
    name = "datetime"

    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return microseconds since 1970-01-01 00:00:00 of the same clock; milliseconds by option."""
        match options.temporal:
            case "logical":
                return semantic("long", _MICRO_TIMESTAMP, logical="local-timestamp-micros")
            case "debezium":
                return semantic(
                    "long", "io.debezium.time.Timestamp" if self._ms(options) else _MICRO_TIMESTAMP
                )
            case "connect":
                return semantic("long", _CONNECT_TIMESTAMP, logical="timestamp-millis")

    def _ms(self, options: AvroOptions) -> bool:
        """Whether values are in milliseconds."""
        return options.temporal == "connect" or (options.temporal == "debezium" and self.digits <= 3)

    @abstractmethod
    def to_micros(self) -> Convert:
        """Return the function from payload to microseconds."""

    def avro_decoder(self, options: AvroOptions) -> Convert:
        """Convert to microseconds or milliseconds."""
        micros = self.to_micros()
        return (lambda payload: micros(payload) // 1000) if self._ms(options) else micros

    def from_default(self, text: str) -> DateTime:
        """Take a date, or a date and time."""
        (year, month, day, hour, minute, second), micros = self._parts(_MOMENT, text)
        return DateTime(year, month, day, hour, minute, second, micros)

    def text(self, value: DateTime) -> str:
        """Write date, time and fraction."""
        return value.text(self.digits)

    def from_selected(self, value: bytes) -> DateTime:
        """Read date, time and a fraction."""
        date, _, time = value.partition(b" ")
        whole, _, fraction = time.partition(b".")
        clock = int(whole[:2]), int(whole[3:5]), int(whole[6:])
        return DateTime(*_selected_date(date), *clock, _selected_micros(fraction))


@declare(ColumnType.DATETIME2, catalog={"datetime": _fraction})
class DateTime2(_DateTimeCodec):
    """DATETIME since MySQL 5.6: a :class:`DateTime`; 5 bytes and 0-3 of fraction, big-endian.

    Above the fraction: second in bits 0-5, minute 6-11, hour 12-16, day 17-21, then year times 13 plus
    month in 17 bits, and a sign bit that is always set.
    """

    metadata_layout = _FRACTION_METADATA
    selected = SelectedKind.DATETIME

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.fraction_bytes = (self.digits + 1) // 2
        self.struct_code = f"{5 + self.fraction_bytes}s"

    def decode(self, payload: bytes) -> DateTime:
        """Return a DateTime."""
        packed = int.from_bytes(payload[:5], "big") - 0x8000000000
        if packed < 0:
            raise InvalidValueError(f"{payload.hex()} is not a DATETIME")
        year, month = divmod(packed >> 22, 13)
        clock = packed >> 12 & 31, packed >> 6 & 63, packed & 63
        units = int.from_bytes(payload[5:], "big")
        fraction = checked_fraction(units, self.digits, _UNITS[self.fraction_bytes])
        return checked_datetime(DateTime(year, month, packed >> 17 & 31, *clock, fraction))

    def encode(self, value: DateTime) -> bytes:
        """Take a DateTime with no more digits than the column."""
        year, month, day, hour, minute, second, microsecond = value
        if not (
            0 <= month <= 12 and 0 <= day < 32 and 0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60
        ):
            raise EncodeError(f"{value} is not a DATETIME")
        packed = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
        if not 0 <= packed < 0x8000000000:
            raise EncodeError(f"{value} is not a DATETIME")
        size = self.fraction_bytes
        fraction = _to_bytes(_fraction_units(microsecond, size), size, value)
        return (packed + 0x8000000000).to_bytes(5, "big") + fraction

    def to_micros(self) -> Convert:
        """Convert to microseconds."""
        shift = 8 * self.fraction_bytes
        mask = (1 << shift) - 1
        unit, digits = _UNITS[self.fraction_bytes], self.digits

        from_bytes = int.from_bytes

        def convert(payload: bytes) -> int:
            packed = from_bytes(payload, "big")
            time = packed >> shift
            fraction = checked_fraction(packed & mask, digits, unit) if digits else 0
            try:
                return (
                    _packed_midnight(time >> 17)
                    + _MICROS_OF_MINUTE[time >> 6 & 2047]
                    + _MICROS_OF_SECOND[time & 63]
                    + fraction
                )
            except KeyError:
                raise InvalidValueError(f"{payload.hex()} is not a DATETIME") from None

        return convert

    def native(self, options: AvroOptions) -> Native | None:
        """Count the microseconds."""
        return None if self._ms(options) else Native(NativeKind.DATETIME, self.fraction_bytes, self._step())


_MICROS_OF_MINUTE = {
    hour << 6 | minute: (hour * 60 + minute) * 60_000_000 for hour in range(24) for minute in range(60)
}
_MICROS_OF_SECOND = {second: second * 1_000_000 for second in range(60)}


@lru_cache(maxsize=8192)
def _packed_midnight(packed: int) -> int:
    """Count the microseconds up to a day in DATETIME2's form: sign bit, year times 13 plus month, day."""
    year_month = (packed >> 5) - 0x20000
    if year_month < 0:
        raise UnrepresentableError("a negative DATETIME")
    return _days(*divmod(year_month, 13), packed & 31) * _DAY


_DATETIME_HIRES_SIZES = (8, 6, 6, 7, 7, 7, 8)


@declare(ColumnType.DATETIME, formerly="datetime")
class DateTimeOld(_DateTimeCodec):
    """DATETIME before MySQL 5.6: a :class:`DateTime`; 8 bytes, the decimal digits YYYYMMDDhhmmss.

    With digits of a fraction, which only MariaDB wrote: 6-8 bytes big-endian, the fields in mixed radix
    (13 months, 32 days, 24, 60, 60) in units of the last digit.
    """

    metadata_layout = _OLD_METADATA

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.size = _DATETIME_HIRES_SIZES[self.digits]
        self.unit: int = 10 ** (6 - self.digits)
        self.struct_code = f"{self.size}s" if self.digits else "Q"

    def decode(self, payload: Any) -> DateTime:
        """Return a DateTime."""
        if self.digits:
            rest, micros = divmod(int.from_bytes(payload, "big") * self.unit, 1_000_000)
            rest, second = divmod(rest, 60)
            rest, minute = divmod(rest, 60)
            rest, hour = divmod(rest, 24)
            rest, day = divmod(rest, 32)
            year, month = divmod(rest, 13)
            return checked_datetime(DateTime(year, month, day, hour, minute, second, micros))
        date, time = divmod(payload, 1_000_000)
        clock = time // 10_000, time // 100 % 100, time % 100
        return checked_datetime(DateTime(date // 10_000, date // 100 % 100, date % 100, *clock))

    def encode(self, value: DateTime) -> int | bytes:
        """Take a DateTime with no more digits than the column."""
        year, month, day, hour, minute, second, microsecond = value
        if microsecond % self.unit:
            raise EncodeError(f"{value} has more than {self.digits} digits of a fraction")
        if self.digits:
            packed = ((((year * 13 + month) * 32 + day) * 24 + hour) * 60 + minute) * 60 + second
            return _to_bytes((packed * 1_000_000 + microsecond) // self.unit, self.size, value)
        return ((((year * 100 + month) * 100 + day) * 100 + hour) * 100 + minute) * 100 + second

    def to_micros(self) -> Convert:
        """Convert to microseconds."""

        def convert(payload: Any) -> int:
            year, month, day, hour, minute, second, microsecond = self.decode(payload)
            seconds = hour * 3600 + minute * 60 + second
            return _days(year, month, day) * _DAY + seconds * 1_000_000 + microsecond

        return convert


class _TimestampCodec(_Temporal):
    selection = "UNIX_TIMESTAMP({})"
    name = "timestamp"

    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return microseconds since 1970-01-01 00:00:00 UTC; a text in UTC or milliseconds by option."""
        match options.temporal:
            case "logical":
                return semantic("long", _MICRO_TIMESTAMP, logical="timestamp-micros")
            case "debezium":
                return semantic("string", "io.debezium.time.ZonedTimestamp")
            case "connect":
                return semantic("long", _CONNECT_TIMESTAMP, logical="timestamp-millis")

    @abstractmethod
    def to_micros(self) -> Convert:
        """Return the function from payload to microseconds."""

    def avro_decoder(self, options: AvroOptions) -> Convert:
        """Convert to microseconds, to text in ISO 8601, or to milliseconds."""
        micros, digits = self.to_micros(), self.digits
        match options.temporal:
            case "logical":
                return micros
            case "debezium":
                return lambda payload: _zoned(micros(payload), digits)
            case "connect":
                return lambda payload: micros(payload) // 1000

    def text(self, value: Timestamp) -> str:
        """Write date and time in UTC."""
        return value.text(self.digits)

    def from_selected(self, value: bytes) -> Timestamp:
        """Read seconds since 1970 and a fraction."""
        seconds, _, fraction = value.partition(b".")
        return Timestamp(int(seconds), _selected_micros(fraction))

    def printer(self) -> Print:
        """Write seconds since 1970 and the fraction."""
        decode, digits = self.decode, self.digits

        def write(payload: Any) -> bytes:
            seconds, microsecond = decode(payload)
            if not digits:
                return b"%d" % seconds
            return b"%d.%0*d" % (seconds, digits, microsecond // 10 ** (6 - digits))

        return write


def _zoned(micros: int, digits: int) -> str:
    return Timestamp(*divmod(micros, 1_000_000)).text(digits).replace(" ", "T") + "Z"


def _timestamp_micros(micros: int) -> int:
    if not micros:
        raise UnrepresentableError("0000-00-00 00:00:00 is not a moment")
    return micros


@declare(ColumnType.TIMESTAMP2, catalog={"timestamp": _fraction})
class Timestamp2(_TimestampCodec):
    """TIMESTAMP since MySQL 5.6: a :class:`Timestamp`; 4 bytes of seconds and 0-3 of fraction, big-endian."""

    metadata_layout = _FRACTION_METADATA
    selected = SelectedKind.TIMESTAMP

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.fraction_bytes = (self.digits + 1) // 2
        self.struct_code = f"{4 + self.fraction_bytes}s"

    def decode(self, payload: bytes) -> Timestamp:
        """Return a Timestamp."""
        units = int.from_bytes(payload[4:], "big")
        fraction = checked_fraction(units, self.digits, _UNITS[self.fraction_bytes])
        return Timestamp(int.from_bytes(payload[:4], "big"), fraction)

    def encode(self, value: Timestamp) -> bytes:
        """Take a Timestamp with no more digits than the column."""
        seconds, microsecond = value
        size = self.fraction_bytes
        fraction = _to_bytes(_fraction_units(microsecond, size), size, value)
        return _to_bytes(seconds, 4, value) + fraction

    def to_micros(self) -> Convert:
        """Convert to microseconds."""
        if not self.fraction_bytes:
            from_bytes = int.from_bytes

            def convert_seconds(payload: bytes) -> int:
                micros = from_bytes(payload, "big") * 1_000_000
                return micros or _timestamp_micros(micros)

            return convert_seconds

        def convert(payload: bytes) -> int:
            seconds, microsecond = self.decode(payload)
            return _timestamp_micros(seconds * 1_000_000 + microsecond)

        return convert

    def native(self, options: AvroOptions) -> Native | None:
        """Count the microseconds."""
        return (
            Native(NativeKind.TIMESTAMP, self.fraction_bytes, self._step())
            if options.temporal == "logical"
            else None
        )


_TIMESTAMP_HIRES_FRACTION = (0, 1, 1, 2, 2, 3, 3)


@declare(ColumnType.TIMESTAMP, formerly="timestamp")
class TimestampOld(_TimestampCodec):
    """TIMESTAMP before MySQL 5.6: a :class:`Timestamp`; 4 bytes of seconds, little-endian.

    With digits of a fraction, which only MariaDB wrote: 4 bytes of seconds and 1-3 of units of the last
    digit, big-endian.
    """

    metadata_layout = _OLD_METADATA

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.unit: int = 10 ** (6 - self.digits)
        self.fraction_bytes = _TIMESTAMP_HIRES_FRACTION[self.digits]
        self.struct_code = f"{4 + self.fraction_bytes}s" if self.digits else "I"

    def decode(self, payload: Any) -> Timestamp:
        """Return a Timestamp."""
        if self.digits:
            fraction = checked_fraction(int.from_bytes(payload[4:], "big"), self.digits, self.unit)
            return Timestamp(int.from_bytes(payload[:4], "big"), fraction)
        return Timestamp(payload)

    def encode(self, value: Timestamp) -> int | bytes:
        """Take a Timestamp with no more digits than the column."""
        units, lost = divmod(value.microsecond, self.unit)
        if lost:
            raise EncodeError(f"{value} has more than {self.digits} digits of a fraction")
        if self.digits:
            return _to_bytes(value.seconds, 4, value) + _to_bytes(units, self.fraction_bytes, value)
        return value.seconds

    def to_micros(self) -> Convert:
        """Convert to microseconds."""

        def convert(payload: Any) -> int:
            seconds, microsecond = self.decode(payload)
            return _timestamp_micros(seconds * 1_000_000 + microsecond)

        return convert
