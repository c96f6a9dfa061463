"""How a family's NextN (MTP) modules are made and named."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MTPSpec:
    """x_i = projection(norms of embed(t_{i+1}) and h_i), a decoder layer at position i, output_norm, head.

    h_i is the target's hidden state after its final norm or, in a chain, the module's own output after
    output_norm. The embedding counts at every position, position 0 too. The decoder layer has experts where a
    target's layer of its number would. Embedding and head are the target's.

    prefix: of a module's tensors, of the layer number {layer}. copies: tensors of a module that repeat the
    target's embedding and head, and are not loaded. embedding_first: else h_i is first in the concatenation.
    """

    prefix: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    copies: tuple[str, ...]
    embedding_first: bool

    def weight(self, layer: int, name: str) -> str:
        """The checkpoint's name of one of a module's own weights."""
        return f"{self.prefix.format(layer=layer)}{name}.weight"
