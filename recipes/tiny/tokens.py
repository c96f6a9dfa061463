"""The tokenizer of `nextn-tiny` (byte-level BPE, 4096 entries), and the streams of training tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from data import Source, load
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
# DeepSeek-V3's pre-tokenizer: digits in threes, then words, runs of punctuation, and white space.
SPLITS = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# The user's messages are the Python code to continue, without any markers.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% elif message['role'] == 'user' %}{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tok = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in SPLITS]
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in (BOS, EOS, PAD, USER, ASSISTANT)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(texts, trainer)
    tok.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return tok


def tokenizer_config() -> dict[str, object]:
    def token(content: str) -> dict[str, object]:
        return {
            "__type": "AddedToken",
            "content": content,
            "lstrip": False,
            "normalized": True,
            "rstrip": False,
            "single_word": False,
        }

    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": token(BOS),
        "eos_token": token(EOS),
        "pad_token": token(PAD),
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "legacy": True,
        "model_max_length": 4096,
        "sp_model_kwargs": {},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }


def stream(tok: Tokenizer, files: list[Source], seed: int) -> Tensor:
    """The tokens of all files in a shuffled order, with EOS after each file, as one int16 tensor."""
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
    out: list[int] = []
    for enc in tok.encode_batch([files[i].text for i in order], add_special_tokens=False):
        out.extend(enc.ids)
        out.append(1)
    return torch.tensor(out, dtype=torch.int16)


def prepare(work: Path, vocab_size: int) -> tuple[Tokenizer, dict[str, Tensor]]:
    """Makes the tokenizer and the streams `lib`, `tests`, `packages`, `held_out`, or reads them if `work` has
    them."""
    tok_path, ids_path = work / "tokenizer.json", work / "streams.pt"
    if tok_path.exists() and ids_path.exists():
        return Tokenizer.from_file(str(tok_path)), torch.load(ids_path)
    stdlib, packages, held = load()
    lib = [s for s in stdlib if "/test" not in s.name and "/idle_test" not in s.name]
    tests = [s for s in stdlib if s not in lib]
    tok = train_tokenizer([s.text for s in lib] + [s.text for s in packages[::8]], vocab_size)
    streams = {
        "lib": stream(tok, lib, 0),
        "tests": stream(tok, tests, 1),
        "packages": stream(tok, packages, 2),
        "held_out": stream(tok, held, 3),
    }
    tok.save(str(tok_path))
    torch.save(streams, ids_path)
    counts = {k: v.numel() for k, v in streams.items()}
    (work / "streams.json").write_text(json.dumps(counts, indent=1) + "\n")
    return tok, streams
