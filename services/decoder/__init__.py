"""The service of the decoder, which :mod:`millrace.decoder` is."""
