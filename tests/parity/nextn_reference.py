"""Chained NextN drafting, slow and plain: no KV cache, no batch, every step from scratch.

Written from the papers' and the checkpoint's definition, apart from nextn's engine, layers and drafter.
The target and the module's decoder layer are transformers' own; only the rule by which a token is picked
from logits (`nextn.sampling.sampler.choose`) is nextn's, and it is tested elsewhere.

With committed tokens t_0 .. t_{n-1}, module inputs are pairs (state, token after it):

    position   0        1       ...  n-2           n-1                  n
    state      h_0      h_1     ...  h_{n-2}       out_{n-2}            out_{n-1}
    token      t_1      t_2     ...  t_{n-1}       draft 1              draft 2
    predicts   -        -            draft 1       draft 2              draft 3

h: the target after its final norm; out: the module after its own (shared_head.norm). RoPE position: the
state's. GLM-4.7-Flash's embedding at position 0 is zero.

With several modules each depth has its own, as long as there are (DeepSeek-V3's report, 2.2): module k goes
over the same positions 0 .. n-2 with what module k - 1 put out there and the tokens k further on, and so
predicts draft k + 1. Beyond the last one, that is chained as above.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from parity.oracle import FIRST_MASKED, in_transformers, load_oracle
from safetensors import safe_open
from torch import Tensor, nn

from nextn.draft import Draft, Shape
from nextn.request import SamplingParams
from nextn.sampling.choice import Choice
from nextn.sampling.sampler import choose, rank
from nextn.speculative.tree import Growing


@dataclass(frozen=True)
class Step:
    """One step that chose tokens: drafts that were verified, and tokens committed, the bonus last."""

    drafts: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def accepted(self) -> int:
        return len(self.tokens) - 1


class NextNReference:
    """Every request goes to its limit: end tokens do not end it.

    What it answers is a function of what is asked, so answers are kept: tests ask for the same text often.
    """

    def __init__(self, folder: Path, module: int = 0, count: int = 1) -> None:
        """module: the first of the checkpoint's NextN modules that are used; count: how many."""
        self.folder = folder = in_transformers(folder)
        config = json.loads((folder / "config.json").read_text())
        layers, self.first_masked = config["num_hidden_layers"], config["model_type"] == FIRST_MASKED
        self.target = load_oracle(folder, layers + module + count)
        self.target.config.num_hidden_layers = layers  # it goes through this many in `forward`
        names, self.hidden_first = ("enorm", "hnorm", "eh_proj", "shared_head.norm"), False
        if self.folder.name == "as_qwen2":  # MiMo
            names = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
            self.hidden_first = True
        self.modules: list[tuple[nn.Module, list[Tensor]]] = []
        for number in range(layers + module, layers + module + count):
            own = {name: f"model.layers.{number}.{name}.weight" for name in names}
            found: dict[str, Tensor] = {}
            for file in folder.glob("*.safetensors"):
                with safe_open(str(file), framework="pt") as f:
                    here = set(f.keys()).intersection(own.values())
                    found |= {name: f.get_tensor(name).float() for name in here}
            self.modules.append((self.target.model.layers[number], [found[own[name]] for name in names]))
        self.eps = self.target.config.rms_norm_eps
        self._hidden: dict[tuple[int, ...], Tensor] = {}
        self._drafts: dict[tuple[object, ...], list[int]] = {}

    @torch.no_grad()
    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """[len(tokens), C], after the final norm."""
        key = tuple(tokens)
        if key not in self._hidden:
            out = self.target.model(torch.tensor([tokens]), use_cache=False)
            self._hidden[key] = out.last_hidden_state[0]
        return self._hidden[key]

    def module(self, states: Tensor, following: Sequence[int], number: int = 0) -> Tensor:
        """states [L, C] at positions 0 .. L-1, the token for each -> the module's output [L, C]."""
        block, (enorm, hnorm, eh_proj, norm) = self.modules[number]
        embeds = self.target.model.embed_tokens(torch.tensor(following))
        if self.first_masked:
            embeds = torch.cat((torch.zeros_like(embeds[:1]), embeds[1:]))
        parts = rms_norm(embeds, enorm, self.eps), rms_norm(states, hnorm, self.eps)
        x = F.linear(torch.cat(parts[::-1] if self.hidden_first else parts, -1), eh_proj)[None]
        positions = torch.arange(len(following))[None]
        future = torch.full((len(following),) * 2, float("-inf")).triu(1)
        x = block(
            x,
            attention_mask=future[None, None],
            position_ids=positions,
            position_embeddings=self.target.model.rotary_emb(x, positions),
        )
        return rms_norm(x[0], norm, self.eps)

    def chain(self, tokens: Sequence[int], path: Sequence[int]) -> Iterator[Tensor]:
        """The states [C] that drafts 1, 2, ... are predicted from where those before them are `path`; it may
        grow meanwhile."""
        states = self.hidden(tokens)[:-1]
        depth = 0
        while True:
            number = min(depth, len(self.modules) - 1)
            out = self.module(states, [*tokens, *path[:depth]][number + 1 :], number)
            yield out[-1]
            depth += 1
            states = out if depth < len(self.modules) else torch.cat((states, out[-1:]))

    @torch.no_grad()
    def drafts(self, tokens: Sequence[int], num: int, params: SamplingParams) -> list[int]:
        """The first `num` tokens drafted after the committed `tokens`."""
        key = (*tokens, params.temperature, params.seed)
        drafts = self._drafts.setdefault(key, [])
        if len(drafts) < num:
            drafts.clear()
            for state in itertools.islice(self.chain(tokens, drafts), num):
                drafts.append(self._pick(state, tokens, drafts, params))
        return drafts[:num]

    @torch.no_grad()
    def tree(self, tokens: Sequence[int], steps: int, shape: Shape, params: SamplingParams) -> Draft:
        """The tree drafted after the committed `tokens`: every node's path through the modules by itself."""
        growing = Growing(shape.topk)
        for _ in range(steps):
            children = []
            for node in growing.frontier:
                path = growing.path(node)
                state = next(itertools.islice(self.chain(tokens, path), len(path), None))
                choice = Choice(params, tokens, path, num_prompt=0, end_ids=frozenset())
                children += rank(self.target.lm_head(state[None]), [choice], shape.topk)
            growing.grow(children)
        return growing.best(shape.size(steps))

    @torch.no_grad()
    def verify(self, tokens: Sequence[int], drafts: Sequence[int], params: SamplingParams) -> list[int]:
        """What a step commits: drafts as long as each is the target's own choice, then that choice."""
        new: list[int] = []
        states = self.hidden([*tokens, *drafts])[len(tokens) - 1 :]
        for i, state in enumerate(states):
            new.append(self._pick(state, tokens, drafts[:i], params))
            if i < len(drafts) and drafts[i] != new[-1]:
                break
        return new

    def generate(self, prompt: Sequence[int], num_drafts: int, params: SamplingParams) -> list[Step]:
        """params.max_tokens tokens, step by step; the first step is the prompt's and has no drafts."""
        tokens = list(prompt)
        limit = len(prompt) + params.max_tokens
        steps: list[Step] = []
        drafts: list[int] = []
        while len(tokens) < limit:
            new = self.verify(tokens, drafts, params)
            steps.append(Step(tuple(drafts), tuple(new)))
            tokens += new
            num = max(0, min(num_drafts, limit - len(tokens) - 1))  # the step commits one more
            drafts = self.drafts(tokens, num, params)
        return steps

    def _pick(self, state: Tensor, tokens: Sequence[int], path: Sequence[int], params: SamplingParams) -> int:
        choice = Choice(params, tokens, path, num_prompt=0, end_ids=frozenset())
        return choose(self.target.lm_head(state[None]), [choice])[0]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
