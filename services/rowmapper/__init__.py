"""The row mapper: typed events in, the row changes of committed transactions out.

It is the only writer of the row topics. :mod:`.assembler` finds where transactions end and what in them was
undone, :mod:`.tables` knows the tables and how their rows are written, :mod:`.publisher` turns a transaction
into records, :mod:`.mapper` moves Kafka records through these and keeps the state.
"""
