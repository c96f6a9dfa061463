"""The frozen base model: its hidden states, computed by the engine's model, and the weights that the module
uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from texts import Text
from torch import Tensor
from tqdm import tqdm

from nextn.config import EngineConfig, model_folder, usable_cores
from nextn.engine.model import make_model
from nextn.families.config import ModelConfig
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.loader import load_checkpoint
from nextn.models.names import expected_tensors, nextn_prefixes, shared_tensors

PAGE = 16
ROWS = 2048  # rows of a pass


class Base:
    """embedding, head [vocab, hidden], norm [hidden]. layer: the last decoder layer's tensors, by name
    without the layer's prefix. All are f32 on `device`."""

    def __init__(self, model_path: str, device: str) -> None:
        self.model_path, self.device = model_path, torch.device(device)
        self.folder = model_folder(model_path)
        self.config = cfg = ModelConfig.from_folder(self.folder)
        names, last = cfg.names, cfg.names.at(cfg.num_hidden_layers - 1)
        found: dict[str, Tensor] = {}

        def place(name: str, tensor: Tensor) -> None:
            if name.startswith(last) or name in (names.embedding, names.head, names.norm):
                found[name] = tensor.to(self.device, torch.float32)

        load_checkpoint(
            self.folder, expected_tensors(cfg, 0), place, quantization=cfg.quantization, dtype=torch.float32,
            shared=shared_tensors(cfg, 0), skip_prefixes=nextn_prefixes(cfg),
        )  # fmt: skip
        self.embedding, self.norm = found[names.embedding], found[names.norm]
        self.head = self.embedding if cfg.tie_word_embeddings else found[names.head]
        self.layer = {name.removeprefix(last): t for name, t in found.items() if name.startswith(last)}

    def states(self, texts: Sequence[Text], path: Path) -> Tensor:
        """The hidden states after the final norm, [tokens of all texts, hidden] bf16, mapped from the file
        `path`. The file is kept, and used again for the same number of tokens."""
        total, hidden = sum(len(text.ids) for text in texts), self.config.hidden_size
        done = path.with_suffix(".done")
        if not (done.exists() and done.read_text() == str(total)):
            path.unlink(missing_ok=True)
            found = torch.from_file(str(path), shared=True, size=total * hidden, dtype=torch.bfloat16)
            self._fill(texts, found.view(total, hidden))
            done.write_text(str(total))
        return torch.from_file(str(path), shared=True, size=total * hidden, dtype=torch.bfloat16).view(
            total, hidden
        )

    def _fill(self, texts: Sequence[Text], states: Tensor) -> None:
        config = EngineConfig(model_path=self.model_path, device=self.device.type, speculative_num_steps=0)
        model, _ = make_model(config, self.device, usable_cores())
        longest = max(len(text.ids) for text in texts)
        room = max(ROWS, longest)
        pages = room // PAGE + len(texts[:ROWS]) + 1
        layers = self.config.num_hidden_layers
        pool = KVPool(layers, pages, PAGE, model.cache_layout, model.dtype, self.device)
        at, first = 0, 0
        bar = tqdm(total=len(states), unit="tok", desc="states", mininterval=5)
        while first < len(texts):
            spans, rows, page, end = [], 0, 1, first
            while end < len(texts):
                ids = texts[end].ids
                needed = -(-len(ids) // PAGE)
                if rows and (rows + len(ids) > ROWS or page + needed > pages):
                    break
                spans.append(Span(ids, 0, list(range(page, page + needed))))
                rows, page, end = rows + len(ids), page + needed, end + 1
            found = model.forward(model.batch(spans, PAGE), pool)[:rows]
            states[at : at + rows].copy_(found)
            at, first = at + rows, end
            bar.update(rows)
        bar.close()
