"""Spark jobs over the topics of a source: one job, one file, run by ``millrace job NAME`` or ``spark-submit``."""
