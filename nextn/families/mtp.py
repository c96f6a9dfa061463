"""The structure and the names of a family's NextN (MTP) modules."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.families.names import numbered


@dataclass(frozen=True)
class MTPSpec:
    """A module is x_i = projection(norms of embed(t_{i+1}) and h_i), a decoder layer at position i,
    output_norm, and the head.

    h_i is the target's hidden state after its final norm or, in a chain, the module's output after
    output_norm. `nextn.models.base.Model.draft` returns no other state. Embedding and head are the target's.

    prefix: of a module's tensors; {layer} is its number. counted_on: in a whole checkpoint, this number
    continues after the target's layers; otherwise it begins at 0. embedding_copy, head_copy: tensors of a
    module that repeat the target's and are not loaded; None: it has none. embedding_first: whether the
    embedding is before h_i in the concatenation. masks_first: whether the embedding is 0 at position 0.
    dense: the decoder layer has no experts; otherwise it has them if a target layer with its number would.

    In folders with only modules, the numbers begin at 0. exported: `architectures` in config.json of these
    folders; nextn writes the first. own_prefix: prefix of the tensors outside the decoder layer, in the
    layout of an exporter of a single module.
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
        """A module's tensors that repeat the target's."""
        return tuple(name for name in (self.embedding_copy, self.head_copy) if name is not None)

    def at(self, number: int) -> str:
        """Prefix of the module with this number in the files."""
        return self.prefix.format(layer=number)

    def parts(self, name: str) -> tuple[int, str]:
        """(number of the module, name after the prefix) of a module's tensor."""
        found = numbered(self.prefix).match(name)
        assert found, name
        return int(found[1]), name[found.end() :]
