"""The error for a checkpoint that cannot be used, whatever its format."""


class CheckpointError(ValueError):
    """The message names the file and, where known, the tensor or the key."""
