"""A replica's side of MySQL and MariaDB: connection, dump, and what is asked of a server besides.

:mod:`.connection` logs in, :mod:`.dump` reads the binary log as a replica does, by position or by GTID, and
:mod:`.catalog` the definitions of tables. Events come out as bytes; :mod:`millrace.binlog` decodes them.
"""
