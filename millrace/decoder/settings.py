"""Settings of the decoder; the names of the environment variables follow from the fields'."""

from pydantic import Field

from millrace.runtime.settings import RegistrySettings, ServiceSettings, Switch


class DecoderSettings(ServiceSettings):
    """What the decoder needs to know."""

    registry: RegistrySettings = Field(default_factory=lambda: RegistrySettings.model_validate({}))
    skip_gap: Switch = Field(
        default=False,
        description="true to continue after unread records that were deleted, false to stop",
    )
