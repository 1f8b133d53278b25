"""Spark jobs over the topics of a source: one job, one file; see ``millrace job --help``."""
