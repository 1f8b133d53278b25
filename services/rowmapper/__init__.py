"""The service of the row mapper, which :mod:`millrace.rowmapper` is."""
