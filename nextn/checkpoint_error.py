"""The error for a checkpoint of any format that cannot be used."""


class CheckpointError(ValueError):
    """The message names the file and, if known, the tensor or key."""
