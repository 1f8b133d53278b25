"""Settings of ``millrace run``: those of the three services, under their names."""

from millrace.rowmapper.settings import RowMapperSettings
from services.decoder.settings import DecoderSettings
from services.reader.settings import ReaderSettings


class RunSettings(ReaderSettings, DecoderSettings, RowMapperSettings):
    """What the three services need to know."""
