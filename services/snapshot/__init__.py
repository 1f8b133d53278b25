"""The snapshot: the rows of tables as they are, to ``{source}.snapshot``, while the stream runs."""
