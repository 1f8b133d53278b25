"""The row mapper: typed events in, the row changes of committed transactions out.

It is the only writer of the row topics. :mod:`millrace.rowmapper` processes the records; this package reads,
commits and reports.
"""
