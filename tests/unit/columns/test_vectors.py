# ruff: noqa: RUF001 - Cyrillic letters are meant
"""Bytes that real servers wrote for values, with what SELECT showed and what becomes of them in Avro.

Taken from row images of MySQL 5.5.34, 9.7.4 and MariaDB 10.11.19, 11.8.6; the texts were compared with the
servers' own output of SELECT.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from millrace.binlog.columns import COLUMNS, VARIANTS, Column, ColumnType, codec_of
from millrace.binlog.errors import TruncatedError
from millrace.binlog.row_images import RowImages
from tests.columns import column


class Lost:
    """Stands for a value that its Avro type cannot hold."""


T = ColumnType
LOST = Lost()
MANY_SET = tuple(f"m{number}" for number in range(64))
MANY_ENUM = tuple(f"v{number}" for number in range(300))


@dataclass(frozen=True)
class Vector:
    column: Column
    payload: str
    text: str | bytes
    avro: Any


def of(one: Column, *values: str | tuple[Any, ...]) -> list[Vector]:
    """Values of one column: payload, text and what becomes of it in Avro, where that is not the text.

    Without a text (or with None) it is the bytes of the payload themselves.
    """
    made = []
    for value in values:
        payload, *rest = (value, None) if isinstance(value, str) else value
        text = bytes.fromhex(payload) if rest[0] is None else rest[0]
        made.append(Vector(one, payload, text, rest[1] if rest[1:] else text))
    return made


VECTORS = [
    *of(column(T.BLOB_COMPRESSED, 2, charset="latin1"), ("", ""), ("0073686f7274", "short")),
    *of(column(T.BLOB_COMPRESSED, 2, charset="binary"), ("8a01f463601805230d0000", bytes(500))),
    *of(
        column(T.BLOB_COMPRESSED, 2, charset="utf8mb4"),
        ("8a05dc4b494d4b1945a368148da25134bc1000", "def" * 500),
    ),
    *of(
        column(T.VARCHAR_COMPRESSED, 12001, charset="utf8mb4"),
        ("8a07d0aba81805a360148c8251300a46c1500700", "x" * 2000),
        ("0073", "s"),
    ),
    *of(column(T.BIT, 1), "00", "01"),
    *of(column(T.BIT, 64), "0000000000000000", "8000000000000001", "ffffffffffffffff"),
    *of(column(T.BIT, 9), "0001", "0005", "0100", "01ff"),
    *of(column(T.BLOB, 1, charset="binary"), "", "deadbeef"),
    *of(
        column(T.BLOB, 1, charset="utf8mb4"),
        ("", ""),
        ("6e61c3af766520f09f9880097461620a6e6c5c6273", "naïve 😀\ttab\nnl\\bs"),
    ),
    *of(column(T.BLOB, 2, charset="binary"), "", "00", "79", "deadbeef"),
    *of(column(T.BLOB, 2, charset="cp1251"), ("cff0e8e2e5f2", "Привет")),
    *of(column(T.BLOB, 2, charset="latin1"), ("e9", "é"), ("ff", "ÿ")),
    *of(column(T.BLOB, 2, charset="ucs2"), ("65e5672c", "日本")),
    *of(
        column(T.BLOB, 2, charset="utf8mb4"),
        ("", ""),
        ("74", "t"),
        ("7432", "t2"),
        ("6e61c3af766520f09f9880097461620a6e6c5c6273", "naïve 😀\ttab\nnl\\bs"),
    ),
    *of(column(T.BLOB, 3, charset="binary"), "", "deadbeef"),
    *of(
        column(T.BLOB, 3, charset="utf8mb4"),
        ("", ""),
        ("6e61c3af766520f09f9880097461620a6e6c5c6273", "naïve 😀\ttab\nnl\\bs"),
    ),
    *of(column(T.BLOB, 4, charset="binary"), "", "deadbeef"),
    *of(
        column(T.BLOB, 4, charset="utf8mb4"),
        ("", ""),
        ("6e61c3af766520f09f9880097461620a6e6c5c6273", "naïve 😀\ttab\nnl\\bs"),
    ),
    *of(
        column(T.STRING, 10, charset="binary"),
        ("", b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("61", b"a\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        "00010203040506070809",
    ),
    *of(column(T.STRING, 1020, charset="utf8mb4"), ("", ""), ("e697a5e69cace8aa9e", "日本語")),
    *of(column(T.STRING, 20, charset="armscii8"), ("616263", "abc")),
    *of(column(T.STRING, 20, charset="ascii"), ("706c61696e", "plain")),
    *of(
        column(T.STRING, 20, charset="binary"),
        ("6279746573", b"bytes\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
    ),
    *of(column(T.STRING, 20, charset="cp1250"), ("9e9a", "žš")),
    *of(column(T.STRING, 20, charset="cp1251"), ("cff0e8e2e5f2", "Привет")),
    *of(column(T.STRING, 20, charset="cp1256"), ("616263", "abc")),
    *of(column(T.STRING, 20, charset="cp1257"), ("e2fe", "āž")),
    *of(column(T.STRING, 20, charset="cp850"), ("8281", "éü")),
    *of(column(T.STRING, 20, charset="cp852"), ("a5a9", "ąę")),
    *of(column(T.STRING, 20, charset="cp866"), ("8fe0a8a2a5e2", "Привет")),
    *of(column(T.STRING, 20, charset="dec8"), ("e9fc", "éü")),
    *of(column(T.STRING, 20, charset="geostd8"), ("616263", "abc")),
    *of(column(T.STRING, 20, charset="greek"), ("e1e2e3", "αβγ")),
    *of(column(T.STRING, 20, charset="hebrew"), ("f9ece5ed", "שלום")),
    *of(column(T.STRING, 20, charset="hp8"), ("c5cf", "éü")),
    *of(column(T.STRING, 20, charset="keybcs2"), ("91a8", "žš")),
    *of(column(T.STRING, 20, charset="koi8r"), ("f0d2c9d7c5d4", "Привет")),
    *of(column(T.STRING, 20, charset="koi8u"), ("f0d2c9d7c5d4", "Привет")),
    *of(column(T.STRING, 20, charset="latin1"), ("e920fc20df", "é ü ß")),
    *of(column(T.STRING, 20, charset="latin2"), ("b1eab3", "ąęł")),
    *of(column(T.STRING, 20, charset="latin5"), ("f0fdfe", "ğış")),
    *of(column(T.STRING, 20, charset="latin7"), ("e2fe", "āž")),
    *of(column(T.STRING, 20, charset="macce"), ("ece4", "žš")),
    *of(column(T.STRING, 20, charset="macroman"), ("8e9f", "éü")),
    *of(column(T.STRING, 20, charset="swe7"), ("616263", "abc")),
    *of(column(T.STRING, 20, charset="tis620"), ("e4b7c2", "ไทย")),
    *of(column(T.STRING, 40, charset="big5"), ("a4a4a4e5", "中文")),
    *of(column(T.STRING, 40, charset="cp932"), ("93fa967b8cea", "日本語")),
    *of(column(T.STRING, 40, charset="euckr"), ("c7d1b1b9beee", "한국어")),
    *of(column(T.STRING, 40, charset="gb2312"), ("d6d0cec4", "中文")),
    *of(column(T.STRING, 40, charset="gbk"), ("d6d0cec4", "中文")),
    *of(column(T.STRING, 40, charset="sjis"), ("93fa967b8cea", "日本語")),
    *of(column(T.STRING, 40, charset="ucs2"), ("65e5672c002000e9", "日本 é")),
    *of(column(T.STRING, 40, charset="utf8mb4"), ("", ""), ("616263", "abc"), ("747261696c", "trail")),
    *of(column(T.STRING, 60, charset="eucjpms"), ("c6fccbdcb8ec", "日本語")),
    *of(column(T.STRING, 60, charset="ujis"), ("c6fccbdcb8ec", "日本語")),
    *of(column(T.STRING, 60, charset="utf8mb3"), ("e697a5e69cac20c3a9", "日本 é")),
    *of(column(T.STRING, 80, charset="gb18030"), ("d6d0cec49439fc36", "中文😀")),
    *of(column(T.STRING, 80, charset="utf16"), ("d83dde00002000e9", "😀 é")),
    *of(column(T.STRING, 80, charset="utf16le"), ("3dd800de2000e900", "😀 é")),
    *of(column(T.STRING, 80, charset="utf32"), ("0001f60000000020000000e9", "😀 é")),
    *of(column(T.STRING, 80, charset="utf8mb4"), ("f09f988020e697a5e69cac", "😀 日本")),
    *of(
        column(T.DATE),
        ("000000", "0000-00-00", LOST),
        ("00d00f", "2024-00-00", LOST),
        ("21d007", "1000-01-01", -354285),
        ("9f1f4e", "9999-12-31", 2932896),
    ),
    *of(
        column(T.DATETIME2, 0),
        ("8000000000", "0000-00-00 00:00:00", LOST),
        ("8cb2420000", "1000-01-01 00:00:00", -30610224000000000),
        ("99b2443105", "2024-01-02 03:04:05", 1704164645000000),
        ("fef3ff7efb", "9999-12-31 23:59:59", 253402300799000000),
    ),
    *of(
        column(T.DATETIME2, 1),
        ("8cb24200000a", "1000-01-01 00:00:00.1", -30610223999900000),
        ("99b3bcc8b80a", "2024-06-30 12:34:56.1", 1719750896100000),
        ("fef3ff7efa5a", "9999-12-31 23:59:58.9", 253402300798900000),
    ),
    *of(
        column(T.DATETIME2, 2),
        ("8cb242000001", "1000-01-01 00:00:00.01", -30610223999990000),
        ("99b3bcc8b80c", "2024-06-30 12:34:56.12", 1719750896120000),
        ("fef3ff7efa63", "9999-12-31 23:59:58.99", 253402300798990000),
    ),
    *of(
        column(T.DATETIME2, 3),
        ("8cb2420000000a", "1000-01-01 00:00:00.001", -30610223999999000),
        ("99b3bcc8b804ce", "2024-06-30 12:34:56.123", 1719750896123000),
        ("fef3ff7efa2706", "9999-12-31 23:59:58.999", 253402300798999000),
    ),
    *of(
        column(T.DATETIME2, 4),
        ("8cb24200000001", "1000-01-01 00:00:00.0001", -30610223999999900),
        ("99b3bcc8b804d2", "2024-06-30 12:34:56.1234", 1719750896123400),
        ("fef3ff7efa270f", "9999-12-31 23:59:58.9999", 253402300798999900),
    ),
    *of(
        column(T.DATETIME2, 5),
        ("8cb242000000000a", "1000-01-01 00:00:00.00001", -30610223999999990),
        ("99b3bcc8b801e23a", "2024-06-30 12:34:56.12345", 1719750896123450),
        ("fef3ff7efa0f4236", "9999-12-31 23:59:58.99999", 253402300798999990),
    ),
    *of(
        column(T.DATETIME2, 6),
        ("8cb2420000000001", "1000-01-01 00:00:00.000001", -30610223999999999),
        ("99b3bcc8b801e240", "2024-06-30 12:34:56.123456", 1719750896123456),
        ("fef3ff7efa0f423f", "9999-12-31 23:59:58.999999", 253402300798999999),
    ),
    *of(
        column(T.DATETIME, 0),
        ("0000000000000000", "0000-00-00 00:00:00", LOST),
        ("40c3775418090000", "1000-01-01 00:00:00", -30610224000000000),
        ("457c178468120000", "2024-01-02 03:04:05", 1704164645000000),
        ("f77cac8b68120000", "2024-02-29 23:59:59", 1709251199000000),
    ),
    *of(column(T.DATETIME, 1), ("00a9628a0f01", "2024-01-01 00:00:00.1", 1704067200100000)),
    *of(column(T.DATETIME, 3), ("0146e4ebd7ffff", "9999-12-31 23:59:59.999", 253402300799999000)),
    *of(
        column(T.DATETIME, 6),
        ("007fb403f9236001", "1000-01-01 00:00:00.000001", -30610223999999999),
        ("010284e07d0957f1", "2024-06-30 12:34:56.654321", 1719750896654321),
    ),
    *of(column(T.ENUM, 1, charset="cp1251", members=("Привет", "мир")), ("02", "мир")),
    *of(column(T.ENUM, 1, charset="cp1251", members=("Привет", "б")), ("02", "б")),
    *of(column(T.ENUM, 1, charset="latin1", members=("é", "ü")), ("02", "ü")),
    *of(column(T.ENUM, 1, charset="utf8mb4", members=("p", "q")), ("02", "q")),
    *of(column(T.ENUM, 1, charset="utf8mb4", members=("q", "r")), ("02", "r")),
    *of(
        column(T.ENUM, 1, charset="utf8mb4", members=("a", "b", "ccc", "é😀")),
        ("00", ""),
        ("01", "a"),
        ("03", "ccc"),
        ("04", "é😀"),
    ),
    *of(
        column(T.ENUM, 2, charset="utf8mb4", members=MANY_ENUM),
        ("0001", "v255"),
        ("0100", "v0"),
        ("2c01", "v299"),
    ),
    *(
        of(column(T.GEOMETRY, 4), (payload, None, {"wkb": bytes.fromhex(payload)[4:], "srid": 0}))[0]
        for payload in (
            "0000000001010000000000000000001c400000000000002040",
            "000000000101000000000000000000f03f0000000000000040",
            "000000000101000000000000000000f8bf0000000000000240",
        )
    ),
    *of(
        column(T.GEOMETRY, 4),
        (
            "e610000001010000000000000000000040000000000000f03f",
            None,
            {"wkb": bytes.fromhex("01010000000000000000000040000000000000f03f"), "srid": 4326},
        ),
        ("00000000010700000000000000", None, {"wkb": bytes.fromhex("010700000000000000"), "srid": 0}),
    ),
    *of(column(T.STRING, 4, sql_type="inet4"), ("7f000001", "127.0.0.1"), ("ffffffff", "255.255.255.255")),
    *of(
        column(T.STRING, 16, sql_type="inet6"),
        ("00000000000000000000000000000001", "::1"),
        ("00000000000000000000000000000002", "::2"),
        ("00000000000000000000ffffc0000280", "::ffff:192.0.2.128"),
        ("20010db8000000000000ff0000428329", "2001:db8::ff00:42:8329"),
    ),
    *of(
        column(T.STRING, 16, charset="binary", sql_type="inet6"), ("00000000000000000000000000000009", "::9")
    ),
    *of(column(T.TINY), ("00", "0", 0), ("05", "5", 5), ("ff", "-1", -1)),
    *of(column(T.SHORT), ("0080", "-32768", -32768), ("ff7f", "32767", 32767), ("ffff", "-1", -1)),
    *of(
        column(T.INT24),
        ("000080", "-8388608", -8388608),
        ("ffff7f", "8388607", 8388607),
        ("ffffff", "-1", -1),
    ),
    *of(
        column(T.LONG),
        ("00000080", "-2147483648", -2147483648),
        ("18000000", "24", 24),
        ("ffffffff", "-1", -1),
    ),
    *of(
        column(T.LONGLONG),
        ("0000000000000080", "-9223372036854775808", -9223372036854775808),
        ("ffffffffffffff7f", "9223372036854775807", 9223372036854775807),
        ("ffffffffffffffff", "-1", -1),
    ),
    *of(column(T.TINY, unsigned=True), ("00", "0", 0), ("c8", "200", 200), ("ff", "255", 255)),
    *of(column(T.SHORT, unsigned=True), ("0000", "0", 0), ("409c", "40000", 40000), ("ffff", "65535", 65535)),
    *of(
        column(T.INT24, unsigned=True),
        ("000000", "0", 0),
        ("405489", "9000000", 9000000),
        ("ffffff", "16777215", 16777215),
    ),
    *of(
        column(T.LONG, unsigned=True),
        ("00000000", "0", 0),
        ("005ed0b2", "3000000000", 3000000000),
        ("ffffffff", "4294967295", 4294967295),
    ),
    *of(
        column(T.LONGLONG, unsigned=True),
        ("0000000000000000", "0", b"\x00"),
        ("0000000000000080", "9223372036854775808", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00"),
        ("ffffffffffffffff", "18446744073709551615", b"\x00\xff\xff\xff\xff\xff\xff\xff\xff"),
    ),
    *of(
        column(T.JSON, 4),
        ("0400", "null"),
        ("0401", "true"),
        ("0402", "false"),
        ("0c00", '""'),
        ("050000", "0"),
        ("050080", "-32768"),
        ("057f00", "127"),
        ("05ff7f", "32767"),
        ("05ffff", "-1"),
        ("0000000400", "{}"),
        ("0200000400", "[]"),
        ("0700000080", "-2147483648"),
        ("0700800000", "32768"),
        ("07ffffff7f", "2147483647"),
        ("0c03737472", '"str"'),
        ("090000000000000080", "-9223372036854775808"),
        ("090000008000000000", "2147483648"),
        ("0affffffffffffff7f", "9223372036854775807"),
        ("0affffffffffffffff", "18446744073709551615"),
        ("0b000000000000f03f", "1.0"),
        ("0b000000000000f83f", "1.5"),
        ("0ba0c8eb85f3cce1ff", "-1e308"),
        ("0c08c3a9f09f9880000a", '"é😀\\u0000\\n"'),
        ("0ff6070b02800000030e", "3.14"),
        ("0f0c08000000000042b219", '"2024-01-01 00:00:00.000000"'),
        ("0001000c000b00010005010061", '{"a": 1}'),
        ("0001000c000b00010005020061", '{"a": 2}'),
        ("0203000d00050100050200050300", "[1, 2, 3]"),
        ("0204001000050100050200050300050400", "[1, 2, 3, 4]"),
        ("00010016000b000100020c006b02000a00050100050200", '{"k": [1, 2]}'),
        ("0201002000020700010019000207000100120002070001000b0002070000000400", "[[[[[]]]]]"),
        (
            "02030025000b0d000b15000b1d009a9999999999b93f408cb5781daf1544b6f37d54346f9d41",
            "[0.1, 1e20, 123456789.123]",
        ),
    ),
    *of(
        column(T.VARCHAR, 12, sql_type="vector(3)"),
        ("00000000000000000000803f", None, [0.0, 0.0, 1.0]),
        ("0000803f00002040000040c0", None, [1.0, 2.5, -3.0]),
    ),
    *of(
        column(T.VARCHAR, 12, charset="binary", sql_type="vector(3)"),
        ("00004040000000400000803f", None, [3.0, 2.0, 1.0]),
    ),
    *of(
        column(T.NEWDECIMAL, 10, 0),
        ("76c4653600", "-9999999999", b"\xfd\xab\xf4\x1c\x01"),
        ("8000000000", "0", b"\x00"),
        ("893b9ac9ff", "9999999999", b"\x02T\x0b\xe3\xff"),
    ),
    *of(
        column(T.NEWDECIMAL, 12, 4),
        ("7ffffb2de9d1", "-1234.5678", b"\xffC\x9e\xb2"),
        ("800000000001", "0.0001", b"\x01"),
    ),
    *of(
        column(T.NEWDECIMAL, 18, 9, unsigned=True),
        ("8000000000000000", "0.000000000", b"\x00"),
        ("8000000100000001", "1.000000001", b";\x9a\xca\x01"),
        ("875bcd153ade68b1", "123456789.987654321", b"\x01\xb6\x9bK\xe0R\xfa\xb1"),
    ),
    *of(
        column(T.NEWDECIMAL, 38, 10),
        (
            "7ef204c72df8a432eaff439eb1ff439eb1f6",
            "-1234567890123456789012345678.0123456789",
            b"\xf6\xb6O\t\x0f\xfd\xcc\xec;\xb6o\xb13\x98\xba\xeb",
        ),
        ("800000000000000000000000000000000000", "0.0000000000", b"\x00"),
        ("800000000000000000000000010000000000", "1.0000000000", b"\x02T\x0b\xe4\x00"),
    ),
    *of(
        column(T.NEWDECIMAL, 5, 2),
        ("7c189c", "-999.99", b"\xfeya"),
        ("7ffffe", "-0.01", b"\xff"),
        ("807b2d", "123.45", b"09"),
    ),
    *of(
        column(T.NEWDECIMAL, 65, 30),
        (
            "7a0a1f00c4653600c4653600c4653600c4653600c4653600c4653600fc18",
            "-99999999999999999999999999999999999.999999999999999999999999999999",
        ),
        ("7fffffffffffffffffffffffffffffffe2329affffffffffffffffffffff", "-0.500000000000000000000000000000"),
        ("800000000000000000000000000000000000000000000000000000000001", "0.000000000000000000000000000001"),
    ),
    *of(
        column(T.NEWDECIMAL, 9, 9),
        ("44653600", "-0.999999999", b"\xc4e6\x01"),
        ("80000001", "0.000000001", b"\x01"),
        ("875bcd15", "0.123456789", b"\x07[\xcd\x15"),
    ),
    *of(column(T.FLOAT, 4), ("0000c03f", "1.5", 1.5)),
    *of(
        column(T.FLOAT, 4, sql_type="float(7,2)"),
        ("aee640c6", "-12345.67", -12345.669921875),
        ("cdcccc3d", "0.10", 0.10000000149011612),
        ("ff4fc347", "99999.99", 99999.9921875),
    ),
    *of(
        column(T.DOUBLE, 8),
        ("0000000000001000", "2.2250738585072014e-308", 2.2250738585072014e-308),
        ("9a9999999999b93f", "0.1", 0.1),
        ("ffffffffffffefff", "-1.7976931348623157e308", -1.7976931348623157e308),
    ),
    *of(
        column(T.DOUBLE, 8, unsigned=True, sql_type="double(10,2) unsigned"),
        ("0000000000000000", "0.00", 0.0),
        ("000000000000f43f", "1.25", 1.25),
        ("52b81edd298c6741", "12345678.91", 12345678.91),
    ),
    *of(
        column(T.SET, 1, charset="utf8mb4", members=("x", "y", "z", "w w")),
        ("00", ""),
        ("02", "y"),
        ("0f", "x,y,z,w w"),
    ),
    *of(column(T.SET, 1, charset="utf8mb4", members=("r", "s")), ("03", "r,s")),
    *of(column(T.SET, 1, charset="utf8mb4", members=("日", "本")), ("02", "本"), ("03", "日,本")),
    *of(column(T.SET, 1, charset="utf8mb4", members=("m", "n")), ("03", "m,n")),
    *of(
        column(T.SET, 8, charset="utf8mb4", members=MANY_SET),
        ("0001000000000080", "m8,m63"),
        ("0100000000000000", "m0"),
        ("ffffffffffffffff", ",".join(MANY_SET)),
    ),
    *of(
        column(T.TIME, 0),
        ("010000", "00:00:01", 1000000),
        ("590a80", "-838:59:59", -3020399000000),
        ("a7f57f", "838:59:59", 3020399000000),
        ("ffffff", "-00:00:01", -1000000),
    ),
    *of(column(T.TIME, 1), ("01cc4eee", "-01:02:03.4", -3723400000)),
    *of(column(T.TIME, 3), ("01680f4aff", "838:59:59.999", 3020399999000)),
    *of(column(T.TIME, 6), ("000000000001", "-838:59:59.999999", -3020399999999)),
    *of(
        column(T.TIME2, 0),
        ("4b9105", "-838:59:59", -3020399000000),
        ("4b9106", "-838:59:58", -3020398000000),
        ("7fffff", "-00:00:01", -1000000),
        ("b46efb", "838:59:59", 3020399000000),
    ),
    *of(
        column(T.TIME2, 1),
        ("4b9105a6", "-838:59:58.9", -3020398900000),
        ("7ffffff6", "-00:00:00.1", -100000),
        ("b46efa5a", "838:59:58.9", 3020398900000),
    ),
    *of(
        column(T.TIME2, 2),
        ("4b91059d", "-838:59:58.99", -3020398990000),
        ("7ffffff4", "-00:00:00.12", -120000),
        ("b46efa63", "838:59:58.99", 3020398990000),
    ),
    *of(
        column(T.TIME2, 3),
        ("4b9105d8fa", "-838:59:58.999", -3020398999000),
        ("7ffffffb32", "-00:00:00.123", -123000),
        ("b46efa2706", "838:59:58.999", 3020398999000),
    ),
    *of(
        column(T.TIME2, 4),
        ("4b9105d8f1", "-838:59:58.9999", -3020398999900),
        ("7ffffffb2e", "-00:00:00.1234", -123400),
        ("b46efa270f", "838:59:58.9999", 3020398999900),
    ),
    *of(
        column(T.TIME2, 5),
        ("4b9105f0bdca", "-838:59:58.99999", -3020398999990),
        ("7ffffffe1dc6", "-00:00:00.12345", -123450),
        ("b46efa0f4236", "838:59:58.99999", 3020398999990),
    ),
    *of(
        column(T.TIME2, 6),
        ("4b9105f0bdc1", "-838:59:58.999999", -3020398999999),
        ("7ffffffe1dc0", "-00:00:00.123456", -123456),
        ("b46efa0f423f", "838:59:58.999999", 3020398999999),
    ),
    *of(
        column(T.TIMESTAMP2, 0),
        ("00000000", "0000-00-00 00:00:00", LOST),
        ("00000001", "1970-01-01 00:00:01", 1000000),
        ("668150f0", "2024-06-30 12:34:56", 1719750896000000),
        ("7fffffff", "2038-01-19 03:14:07", 2147483647000000),
    ),
    *of(
        column(T.TIMESTAMP2, 1),
        ("000000010a", "1970-01-01 00:00:01.1", 1100000),
        ("668150f00a", "2024-06-30 12:34:56.1", 1719750896100000),
        ("7ffffffe5a", "2038-01-19 03:14:06.9", 2147483646900000),
    ),
    *of(
        column(T.TIMESTAMP2, 2),
        ("0000000101", "1970-01-01 00:00:01.01", 1010000),
        ("668150f00c", "2024-06-30 12:34:56.12", 1719750896120000),
        ("7ffffffe63", "2038-01-19 03:14:06.99", 2147483646990000),
    ),
    *of(
        column(T.TIMESTAMP2, 3),
        ("00000001000a", "1970-01-01 00:00:01.001", 1001000),
        ("668150f004ce", "2024-06-30 12:34:56.123", 1719750896123000),
        ("7ffffffe2706", "2038-01-19 03:14:06.999", 2147483646999000),
    ),
    *of(
        column(T.TIMESTAMP2, 4),
        ("000000010001", "1970-01-01 00:00:01.0001", 1000100),
        ("668150f004d2", "2024-06-30 12:34:56.1234", 1719750896123400),
        ("7ffffffe270f", "2038-01-19 03:14:06.9999", 2147483646999900),
    ),
    *of(
        column(T.TIMESTAMP2, 5),
        ("0000000100000a", "1970-01-01 00:00:01.00001", 1000010),
        ("668150f001e23a", "2024-06-30 12:34:56.12345", 1719750896123450),
        ("7ffffffe0f4236", "2038-01-19 03:14:06.99999", 2147483646999990),
    ),
    *of(
        column(T.TIMESTAMP2, 6),
        ("00000001000001", "1970-01-01 00:00:01.000001", 1000001),
        ("6592008007a120", "2024-01-01 00:00:00.500000", 1704067200500000),
        ("668150f001e240", "2024-06-30 12:34:56.123456", 1719750896123456),
        ("7ffffffe0f423f", "2038-01-19 03:14:06.999999", 2147483646999999),
    ),
    *of(
        column(T.TIMESTAMP, 0),
        ("00000000", "0000-00-00 00:00:00", LOST),
        ("01000000", "1970-01-01 00:00:01", 1000000),
        ("7f1ae165", "2024-02-29 23:59:59", 1709251199000000),
        ("ffffff7f", "2038-01-19 03:14:07", 2147483647000000),
    ),
    *of(column(T.TIMESTAMP, 2), ("659200800c", "2024-01-01 00:00:00.12", 1704067200120000)),
    *of(column(T.TIMESTAMP, 6), ("6592008001e240", "2024-01-01 00:00:00.123456", 1704067200123456)),
    *of(
        column(T.STRING, 16, sql_type="uuid"),
        ("123e4567e89b12d3a45642665544", "123e4567-e89b-12d3-a456-426655440000"),
        ("f47ac10b58cc4372a5670e02b2c3d479", "f47ac10b-58cc-4372-a567-0e02b2c3d479"),
    ),
    *of(
        column(T.STRING, 16, charset="binary", sql_type="uuid"),
        ("00000000000010008000000000000001", "00000000-0000-1000-8000-000000000001"),
    ),
    *of(column(T.VARCHAR, 1020, charset="utf8mb4"), ("", ""), ("f09f988020656d6f6a69", "😀 emoji")),
    *of(
        column(T.VARCHAR, 1200, charset="utf8mb4"),
        ("", ""),
        ("66", "f"),
        ("78", "x"),
        ("d09fd180d0b8d0b2d0b5d182", "Привет"),
    ),
    *of(column(T.VARCHAR, 20, charset="binary"), "", "78", "ff", "6279746573"),
    *of(
        column(T.VARCHAR, 200, charset="utf8mb4"),
        ("66312033", "f1 3"),
        ("70312035", "p1 5"),
        ("7472672039", "trg 9"),
    ),
    *of(column(T.VARCHAR, 300, charset="binary"), "", "0a0d5c275c"),
    *of(
        column(T.VARCHAR, 40, charset="utf8mb4"),
        ("", ""),
        ("61", "a"),
        ("78", "x"),
        ("782020", "x  "),
        ("30313233343536373839", "0123456789"),
    ),
    *of(
        column(T.VARCHAR, 80, charset="utf8mb4"),
        ("78", "x"),
        ("7531", "u1"),
        ("7532", "u2"),
        ("6c61726765206f626a656374", "large object"),
    ),
    *of(
        column(T.VECTOR, 4),
        ("000000000000000000000000", None, [0.0, 0.0, 0.0]),
        ("000010410000104100001041", None, [9.0, 9.0, 9.0]),
        ("0000803f00002040000040c0", None, [1.0, 2.5, -3.0]),
    ),
    *of(
        column(T.YEAR, unsigned=True),
        ("00", "0000", 0),
        ("01", "1901", 1901),
        ("7c", "2024", 2024),
        ("ff", "2155", 2155),
    ),
]


EVERY = pytest.mark.parametrize(
    "vector", VECTORS, ids=lambda vector: f"{vector.column.type.name}-{vector.payload[:24]}"
)


def image_of(vector: Vector) -> bytes:
    """One row of the one column, as it stands in a rows event."""
    raw = bytes.fromhex(vector.payload)
    length = codec_of(vector.column).length_bytes
    return b"\0" + (len(raw).to_bytes(length, "little") if length else b"") + raw


@EVERY
def test_natural_value_gives_the_bytes_back(vector: Vector) -> None:
    images = RowImages([vector.column], None, b"\x01")
    ((before, after),) = images.decode(image_of(vector))
    assert before is None
    assert images.encode([(None, after)]) == image_of(vector)
    assert codec_of(vector.column).text(after[0]) == vector.text


@EVERY
def test_avro_value(vector: Vector) -> None:
    rows = RowImages([vector.column], None, b"\x01").avro(image_of(vector))
    ((_, (value,)),) = rows.rows
    if vector.avro is LOST:
        assert value is None
        assert rows.unrepresentable == {(0, 1): {0: vector.text}}
    else:
        assert value == vector.avro
        assert type(value) is type(vector.avro)
        assert not rows.unrepresentable


@EVERY
def test_a_truncated_value_raises(vector: Vector) -> None:
    images = RowImages([vector.column], None, b"\x01")
    image = image_of(vector)
    for size in range(1, len(image)):
        for read in (images.decode, images.avro, images.count):
            with pytest.raises(TruncatedError):
                read(image[:size])


def test_every_declaration_has_vectors() -> None:
    seen = {type(codec_of(vector.column)) for vector in VECTORS}
    assert {codec.__name__ for codec in (*COLUMNS.values(), *VARIANTS.values())} == {
        codec.__name__ for codec in seen
    }
