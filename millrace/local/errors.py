"""What can go wrong with the local stack; each message is meant to be shown to the user as it stands."""


class LocalError(Exception):
    """The local stack cannot do what was asked; the message says why and what to do."""


class ComponentDiedError(LocalError):
    """A server ended, or never became ready; the message holds the tail of its log."""


class MissingLibraryError(LocalError):
    """A database server cannot start on this machine for want of system libraries.

    ``libraries`` names them as the dynamic loader does (``libaio.so.1``).
    """

    def __init__(self, message: str, libraries: list[str]) -> None:
        super().__init__(message)
        self.libraries = libraries
