"""Settings of ``millrace run``: those of the three services, under their names."""

from services.decoder.settings import DecoderSettings
from services.reader.settings import ReaderSettings
from services.rowmapper.settings import RowMapperSettings

__all__ = ["RunSettings"]


class RunSettings(ReaderSettings, DecoderSettings, RowMapperSettings):
    """What the three services need to know."""
