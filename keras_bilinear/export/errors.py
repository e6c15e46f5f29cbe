"""Why a model did not become a file."""


class ConversionError(ValueError):
    """A network has something that files of this kind cannot hold; others may."""


class VerificationError(ValueError):
    """A written file does not do what its model does; the message names the gate, the figure and the limit."""
