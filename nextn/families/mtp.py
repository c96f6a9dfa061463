"""How a family's NextN (MTP) modules are made and named."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.families.names import numbered


@dataclass(frozen=True)
class MTPSpec:
    """x_i = projection(norms of embed(t_{i+1}) and h_i), a decoder layer at position i, output_norm, head.

    h_i is the target's hidden state after its final norm or, in a chain, the module's own output after
    output_norm: `nextn.models.base.Model.draft` can return no other. Embedding and head are the target's.

    prefix: of a module's tensors, of the layer number {layer}. embedding_copy, head_copy: tensors of a module
    that repeat the target's, and are not loaded. embedding_first: else h_i is first in the concatenation.
    masks_first: the embedding is 0 at position 0. dense: the decoder layer has no experts; else it has them
    where a target's layer of its number would.

    In folders that hold modules alone, they are counted from 0. exported: `architectures` of such folders'
    config.json; the first is what nextn writes. own_prefix: where an exporter of one module puts the tensors
    outside its decoder layer.
    """

    prefix: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    embedding_copy: str
    head_copy: str
    embedding_first: bool
    masks_first: bool
    dense: bool
    exported: tuple[str, ...]
    own_prefix: str

    @property
    def own(self) -> tuple[str, ...]:
        """A module's tensors outside its decoder layer."""
        inputs = self.embedding_norm, self.hidden_norm, self.projection
        return (*inputs, self.output_norm, self.embedding_copy, self.head_copy)

    def at(self, layer: int) -> str:
        """Prefix of a module."""
        return self.prefix.format(layer=layer)

    def parts(self, name: str) -> tuple[int, str]:
        """(layer, what follows the prefix) of a module's tensor."""
        found = numbered(self.prefix).match(name)
        assert found, name
        return int(found[1]), name[found.end() :]
