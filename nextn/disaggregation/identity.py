"""What a prefill and a decode server must have in common, so that the pages of one are those that the other
would have computed, to the bit."""

from __future__ import annotations

import msgspec

PROTOCOL = 1  # of the messages


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """page_bytes: of one page in all layers. layers: of the KV pool, `nextn_layers` of them the drafter's.
    kernels: backend, level and build, each of which may round otherwise. model: a hash of its config and of
    samples of its weights."""

    protocol: int = PROTOCOL
    version: str
    model: str
    weights: str  # how they are held, such as "bfloat16" or "int8"
    kernels: str
    page_size: int
    layers: int
    nextn_layers: int
    width: int
    dtype: str

    def differences(self, other: Identity) -> list[str]:
        """What is not the same, for people.

        >>> a = Identity(version="1", model="m", weights="bfloat16", kernels="cpu avx2", page_size=16,
        ...              layers=3, nextn_layers=1, width=80, dtype="bfloat16")
        >>> a.differences(msgspec.structs.replace(a, page_size=32))
        ['page_size is 16 here and 32 there']
        """
        return [
            f"{name} is {mine} here and {theirs} there"
            for name in self.__struct_fields__
            if (mine := getattr(self, name)) != (theirs := getattr(other, name))
        ]
