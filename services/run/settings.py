"""Settings of ``millrace run``: those of the three services, under their names."""

from millrace.decoder.settings import DecoderSettings
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper.settings import RowMapperSettings


class RunSettings(ReaderSettings, DecoderSettings, RowMapperSettings):
    """What the three services need to know."""
