"""The row mapper: typed events in, the row changes of committed transactions out.

:mod:`.assembly` finds where transactions end and what in them was undone, :mod:`.binding` knows the tables
and how their rows are written, :mod:`.publication` turns a transaction into records, :mod:`.stage` moves
records through these and keeps the state, without Kafka, clock or threads. The service and the Spark job
``reprocess`` run the same code. :mod:`.takeover` puts a row mapper together with Kafka.
"""
