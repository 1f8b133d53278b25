"""The row mapper: typed events in, the row changes of committed transactions out.

It is the only writer of the row topics. What it does with records is :mod:`millrace.rowmapper`; here it
reads, commits and reports.
"""
