"""Tokenizers from GGUF keys: the ids of the tokenizer that the keys were made from."""

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gguf_models import gguf_checkpoint
from support.grammars import compiled
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from nextn.bench.prompts import heldout_prompts
from nextn.checkpoint_error import CheckpointError
from nextn.config import EMBEDDED, model_folder
from nextn.constraint import Constraint
from nextn.gguf.metadata import Metadata
from nextn.gguf.pretokenizers import PRE_TOKENIZERS
from nextn.gguf.tokenizer import tokenizer_files
from nextn.grammar.backends import make_backend
from nextn.grammar.base import Vocabulary
from nextn.tokenizer.spelling import SPACE
from nextn.tokenizer.stream import TextStream
from nextn.tokenizer.tokenizer import Tokenizer

SAMPLE = gguf_checkpoint().SAMPLE
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def meta(**keys):
    named = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    return Metadata(Path("m.gguf"), {"general.architecture": "llama", **named})


def backend(files):
    return tokenizers.Tokenizer.from_str(json.dumps(files["tokenizer.json"]))


@pytest.fixture(scope="module")
def trained():
    """A byte-level BPE of a few hundred tokens: (vocabulary, merges)."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [*heldout_prompts(20), SAMPLE, "3333 33 333 2024 " * 9]
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    whole = json.loads(made.to_str())["model"]
    return whole["vocab"], whole["merges"]


def byte_level(trained, pre, **more):
    vocab, merges = trained
    tokens = sorted(vocab, key=vocab.get)
    tokens += ["<s>", "</s>", "<|im_end|>", "<tool>", "[PAD5]"]
    types = [NORMAL] * len(vocab) + [CONTROL, CONTROL, CONTROL, USER, UNUSED]
    keys = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types,
        "merges": [" ".join(pair) for pair in merges], "bos_token_id": len(vocab),
        "eos_token_id": len(vocab) + 1, **more,
    }  # fmt: skip
    return tokenizer_files(meta(**{k: v for k, v in keys.items() if v is not None}))


def test_the_embedded_model_s(tmp_path):
    """What the script writes of it, and what is made of that again."""
    script, source = gguf_checkpoint(), model_folder(EMBEDDED)
    file = tmp_path / "tiny.gguf"
    script.write_gguf(source, file, script.TYPES["q4_0"])
    made = model_folder(str(file))
    ours, theirs = (tokenizers.Tokenizer.from_file(str(f / "tokenizer.json")) for f in (made, source))
    for text in [*heldout_prompts(30), SAMPLE, "", "<｜User｜>x<｜end▁of▁sentence｜>", "a  b\n\n\tc"]:
        assert (
            ours.encode(text, add_special_tokens=False).ids
            == theirs.encode(text, add_special_tokens=False).ids
        )
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_tokens_decoder().keys() == theirs.get_added_tokens_decoder().keys()
    config, want = (json.loads((f / "tokenizer_config.json").read_text()) for f in (made, source))
    assert config["chat_template"] == want["chat_template"]
    assert config["add_bos_token"] is True
    assert [config[f"{n}_token"] for n in ("bos", "eos", "pad")] == [
        want[f"{n}_token"]["content"] for n in ("bos", "eos", "pad")
    ]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_texts_come_back_from_every_kind(trained, pre):
    made = backend(byte_level(trained, pre))
    for text in (SAMPLE, *heldout_prompts(3)):
        assert made.decode(made.encode(text).ids) == text


def test_pieces_are_those_of_the_models_own_patterns(trained):
    """GPT-2's is the library's own; Llama 3's and Qwen's are in transformers."""
    assert PRE_TOKENIZERS["qwen2"].splits == (PRETOKENIZE_REGEX,)
    converter = TikTokenConverter.__init__.__defaults__
    assert PRE_TOKENIZERS["llama-bpe"].splits[0] in converter
    vocab, merges = trained
    gpt2 = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in merges]))
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in merges]))
    digits.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for name, want in (("gpt-2", gpt2), ("smollm", digits)):
        made = backend(byte_level(trained, name))
        for text in (SAMPLE, "a1 22  333x4", *heldout_prompts(5)):
            assert made.encode(text).ids == want.encode(text).ids, name


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("deepseek-v3", "abc 12345 我x", ["abc", " ", "123", "45", " ", "我", "x"]),
        ("deepseek-llm", "abc  12345\r\n我", ["abc", "  ", "12345", "\r", "\n", "我"]),
        ("deepseek-coder", "ab  123.", ["ab", "  ", "1", "2", "3", "."]),
        ("llama-bpe", "I'VE 12345", ["I", "'VE", " ", "123", "45"]),
        ("glm4", "I'VE 12345", ["I", "'VE", " ", "123", "45"]),
        ("qwen2", "I'VE 123", ["I", "'VE", " ", "1", "2", "3"]),
        ("qwen35", "é́x 1", ["é́x", " ", "1"]),
        ("tekken", "HTTPServer 12", ["HTTPServer", " ", "1", "2"]),
        ("gpt-4o", "don't 1234", ["don't", " ", "123", "4"]),
        ("default", "a++b 1234", ["a", "++", "b", " ", "123", "4"]),
    ],
)
def test_pieces(trained, pre, text, pieces):
    made = backend(byte_level(trained, pre))
    found = made.pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in found] == pieces


def test_special_tokens_and_where_answers_end(trained):
    files = byte_level(trained, "qwen2", add_bos_token=False)
    vocab = len(trained[0])
    made = backend(files)
    assert made.encode("<|im_end|>a<tool>").ids[0] == vocab + 2
    assert made.token_to_id("<tool>") == vocab + 3
    assert made.decode([vocab + 2, vocab + 3]) == "<tool>"  # the user's own are text
    assert made.token_to_id("[PAD5]") is None
    assert files["generation_config.json"]["eos_token_id"] == [vocab + 1, vocab + 2]
    assert files["tokenizer_config.json"]["add_bos_token"] is False
    assert files["tokenizer_config.json"]["eos_token"] == "</s>"
    more = byte_level(trained, "qwen2", eot_token_id=vocab + 3)
    assert more["generation_config.json"]["eos_token_id"] == [vocab + 1, vocab + 3, vocab + 2]


@pytest.mark.parametrize(
    ("pre", "bos", "adds"), [("qwen2", True, False), ("llama-bpe", True, True), ("llama-bpe", False, False)]
)
def test_bos_unless_the_file_says_so(trained, pre, bos, adds):
    files = byte_level(trained, pre, bos_token_id=len(trained[0]) if bos else None)
    assert files["tokenizer_config.json"]["add_bos_token"] is adds


def test_a_token_that_is_whole_stays_whole():
    """Llama 3's tokens need no merges of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "ab", "abc"])}
    trained = vocab, [["a", "b"]]
    assert backend(byte_level(trained, "llama-bpe")).encode("abc").tokens == ["abc"]
    assert backend(byte_level(trained, "qwen2")).encode("abc").tokens == ["ab", "c"]


def test_chat_templates(trained):
    values = byte_level(trained, "qwen2")["tokenizer_config.json"]
    assert "chat_template" not in values
    found = meta(model="gpt2", pre="qwen2", tokens=["a", "b", "ab"], merges=["a b"])
    found.values["tokenizer.chat_template"] = "one"
    assert tokenizer_files(found)["tokenizer_config.json"]["chat_template"] == "one"
    found.values["tokenizer.chat_templates"] = ["tool_use"]
    found.values["tokenizer.chat_template.tool_use"] = "two"
    assert tokenizer_files(found)["tokenizer_config.json"]["chat_template"] == [
        {"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "none"}, "'tokenizer.ggml.model' is 'none'; the file has no tokenizer"),
        ({"model": "t5"}, "supported are gpt2 and llama"),
        ({"model": None}, "'tokenizer.ggml.model' is missing"),
        ({"pre": "poro-chat"}, "supported are default, gpt-2"),
        ({"tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"tokens": [1, 2]}, "must be an array of str"),
        ({"tokens": ["a", "a", "ab"]}, "tokens 0 and 1 are both 'a'"),
        ({"token_type": [1]}, "has 1 values, for 3 tokens"),
        ({"merges": None}, "'tokenizer.ggml.merges' is missing"),
        ({"merges": ["a c"]}, "merge 0 is 'a c'"),
        ({"merges": ["ab"]}, "merge 0 is 'ab'"),
        ({"bos_token_id": 3}, "'tokenizer.ggml.bos_token_id' is 3; it must be below the number of tokens, 3"),
        ({"add_eos_token": True}, "an end token after each text is not supported"),
        ({"add_bos_token": 1}, "it must be a bool"),
    ],
)
def test_faults(changes, said):
    keys = {"model": "gpt2", "pre": "qwen2", "tokens": ["a", "b", "ab"], "merges": ["a b"], **changes}
    with pytest.raises(CheckpointError) as e:
        tokenizer_files(meta(**{k: v for k, v in keys.items() if v is not None}))
    assert said in str(e.value)
    assert str(e.value).startswith("m.gguf: ")


WORDS = [
    "a",
    "b",
    "c",
    "é",
    "ab",
    "bc",
    "abc",
    "ca",
    "cab",
    SPACE,
    SPACE + "a",
    SPACE + "ab",
    SPACE * 2,
    "aa",
]


def spm(seed, **more):
    """(files, scores by token). Scores are in no order."""
    rng = random.Random(seed)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *WORDS]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(WORDS)]
    scores = [0.0] * 259 + [float(-s) for s in rng.sample(range(100), len(WORDS))]
    files = tokenizer_files(
        meta(
            model="llama",
            tokens=tokens,
            token_type=types,
            scores=scores,
            bos_token_id=1,
            eos_token_id=2,
            **more,
        )
    )
    return files, dict(zip(tokens, scores, strict=True))


def as_llama_cpp(text, scores):
    """The neighbours whose token has the highest score are merged, the first of them first."""
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    known = [[p] if p in scores else [f"<0x{b:02X}>" for b in p.encode()] for p in parts]
    return [token for each in known for token in each]


@given(st.integers(0, 5), st.text(alphabet="aabbcc é我", max_size=14))
def test_sentencepiece_merges_by_score(seed, text):
    files, scores = spm(seed)
    found = backend(files).encode(text).tokens
    assert found == as_llama_cpp(SPACE + text.replace(" ", SPACE), scores) if text else found == []
    if text:
        assert backend(files).decode(backend(files).encode(text).ids) == text


def test_sentencepiece_without_a_space_before():
    files, scores = spm(1, add_space_prefix=False)
    assert backend(files).encode("ab c").tokens == as_llama_cpp(f"ab{SPACE}c", scores)
    assert isinstance(backend(files).decoder, decoders.Sequence)
    assert files["tokenizer_config.json"]["add_bos_token"] is True


@pytest.fixture
def spm_folder(tmp_path):
    files, _ = spm(2)
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    return tmp_path


@given(texts=st.lists(st.text(alphabet="abc é我\n", max_size=8), min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sentencepiece_text_is_that_of_its_tokens(spm_folder, texts):
    """Token by token, and whole; a text begins with the space that its first token has."""
    tokenizer = Tokenizer.from_folder(spm_folder)
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids[0] == tokenizer.bos_token_id == 1
        assert tokenizer.decode(ids) == " " * bool(text) + text
        stream = TextStream(tokenizer)
        parts = [stream.push([token]).text for token in ids]
        assert "".join(parts) + stream.finish() == tokenizer.decode(ids)
        assert b"".join(tokenizer.token_bytes()[token] for token in ids).decode() == tokenizer.decode(ids)


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_sentencepiece_under_a_grammar(spm_folder, backend):
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    tokenizer = Tokenizer.from_folder(spm_folder)
    made = make_backend(backend, Vocabulary(spm_folder, tokenizer.vocab_size, [2]))
    grammar = compiled(made, Constraint("regex", r" a\n(ab|é)")).begin()
    spelled, data = tokenizer.token_bytes(), b""
    while allowed := np.flatnonzero(grammar.mask()).tolist():
        token = max(allowed, key=lambda i: len(spelled[i]))
        assert grammar.advance([token]) == 1
        data += spelled[token]
    assert grammar.accepting
    assert data.decode() in (" a\nab", " a\né")


def test_sentencepiece_needs_scores():
    with pytest.raises(CheckpointError, match=r"'tokenizer\.ggml\.scores' has 1 values, for 3 tokens"):
        tokenizer_files(meta(model="llama", tokens=["a", "b", "ab"], scores=[1.0]))
