"""The reader: the binary log of a server, or log files, into the raw topic, byte for byte.

It looks at no more of an event than where it begins and ends, which file comes next, and what it needs to
follow GTIDs. :mod:`.live` and :mod:`.files` are the two kinds of sources, :mod:`.stage` makes records of what
they give, and :mod:`.log_identity` decides whether reading can continue in another log.
"""
