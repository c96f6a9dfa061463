"""How a family's NextN (MTP) modules are made and named."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.families.names import numbered


@dataclass(frozen=True)
class MTPSpec:
    """x_i = projection(norms of embed(t_{i+1}) and h_i), a decoder layer at position i, output_norm, head.

    h_i is the target's hidden state after its final norm or, in a chain, the module's own output after
    output_norm: `nextn.models.base.Model.draft` can return no other. Embedding and head are the target's.

    prefix: of a module's tensors, of its number {layer}. counted_on: in a whole checkpoint that number goes
    on from the target's layers; else it begins at 0. embedding_copy, head_copy: tensors of a module that
    repeat the target's, where there are such, and are not loaded. embedding_first: else h_i is first in the
    concatenation. masks_first: the embedding is 0 at position 0. dense: the decoder layer has no experts;
    else it has them where a target's layer of its number would.

    In folders that hold modules alone, they are counted from 0. exported: `architectures` of such folders'
    config.json; the first is what nextn writes. own_prefix: where an exporter of one module puts the tensors
    outside its decoder layer.
    """

    prefix: str
    counted_on: bool
    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    embedding_copy: str | None
    head_copy: str | None
    embedding_first: bool
    masks_first: bool
    dense: bool
    exported: tuple[str, ...]
    own_prefix: str

    @property
    def own(self) -> tuple[str, ...]:
        """A module's tensors outside its decoder layer."""
        inputs = self.embedding_norm, self.hidden_norm, self.projection
        return (*inputs, self.output_norm, *self.copies)

    @property
    def copies(self) -> tuple[str, ...]:
        """Its tensors that repeat the target's."""
        return tuple(name for name in (self.embedding_copy, self.head_copy) if name is not None)

    def at(self, number: int) -> str:
        """Prefix of the module that has this number in the files."""
        return self.prefix.format(layer=number)

    def parts(self, name: str) -> tuple[int, str]:
        """(number, what follows the prefix) of a module's tensor."""
        found = numbered(self.prefix).match(name)
        assert found, name
        return int(found[1]), name[found.end() :]
