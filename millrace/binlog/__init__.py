"""The binary log of MySQL and MariaDB: bytes in, events out, and back. No I/O happens in here."""
