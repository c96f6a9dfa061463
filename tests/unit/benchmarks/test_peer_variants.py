"""What can be asked for, what is measured, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("peers")


def test_a_variant_reads_as_it_is_written() -> None:
    from variants import Variant

    assert Variant.parse("nextn") == Variant("nextn", "float32", 0)
    assert Variant.parse("nextn:bfloat16:mtp3") == Variant("nextn", "bfloat16", 3)
    assert Variant.parse("vllm:mtp1") == Variant("vllm", "bfloat16", 1)
    for text in ("nextn:float32", "vllm:bfloat16:mtp2", "transformers:bfloat16"):
        assert str(Variant.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sglang", "there is no engine 'sglang'; choose from nextn, transformers, llamacpp, vllm"),
        ("transformers:mtp1", "transformers cannot do 'mtp1'; it can do bfloat16, float32$"),
        ("llamacpp:float32", "llamacpp cannot do 'float32'; it can do bfloat16, mtpK"),
        ("vllm:mtpx", "vllm cannot do 'mtpx'"),
    ],
)
def test_what_there_is_not_is_refused(text: str, says: str) -> None:
    from variants import Variant

    with pytest.raises(ValueError, match=says):
        Variant.parse(text)


def test_every_engine_has_its_runner_and_install_function(peers: Path) -> None:
    from variants import ENGINES, OURS, Variant

    install = (peers / "install.sh").read_text()
    for name in ENGINES:
        assert Variant(name, "bfloat16", 0).script.is_file()
        assert name == OURS or f"install_{name}()" in install


def test_all_engines_without_and_with_mtp_by_default() -> None:
    from variants import default_variants

    assert [str(v) for v in default_variants(2)] == [
        "nextn:float32", "nextn:float32:mtp2", "nextn:bfloat16", "nextn:bfloat16:mtp2",
        "transformers:bfloat16",
        "llamacpp:bfloat16", "llamacpp:bfloat16:mtp2", "vllm:bfloat16", "vllm:bfloat16:mtp2",
    ]  # fmt: skip


def test_a_peer_is_there_once_it_is_installed(tmp_path: Path) -> None:
    from variants import interpreter

    assert interpreter("llamacpp", tmp_path) is None
    server = tmp_path / "llamacpp" / "build" / "bin" / "llama-server"
    server.parent.mkdir(parents=True)
    server.touch()
    assert interpreter("llamacpp", tmp_path) == tmp_path / "llamacpp" / "bin" / "python"
    assert interpreter("nextn", tmp_path) is not None


def test_vllm_gets_the_cores_and_the_libraries_it_asks_for(tmp_path: Path) -> None:
    from variants import environment

    library = tmp_path / "vllm" / "tcmalloc" / "usr" / "lib" / "libtcmalloc_minimal.so.4"
    library.parent.mkdir(parents=True)
    library.touch()
    env = environment("vllm", tmp_path, 2, [4, 5, 6])
    assert env["LD_PRELOAD"] == str(library)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "4,5"
    assert env["OMP_NUM_THREADS"] == "2"
    assert "LD_PRELOAD" not in environment("transformers", tmp_path, 2, [4, 5, 6])


def test_cases_have_one_prompt_length_each() -> None:
    from cases import LONG_TOKENS, PREFILL_TOKENS, PROMPT_TOKENS, cases, random_prompts

    prompts = random_prompts(300, bos=0, special=16)
    assert prompts == random_prompts(300, bos=0, special=16)
    assert all(p[0] == 0 and min(p[1:]) >= 16 and max(p) < 300 for p in prompts)
    made = {case.name: case for case in cases(prompts, False, 4096)}
    assert [len(call) for call in made["prefill2048"].calls] == [1, 1]
    assert [len(call) for call in made["single"].calls] == [1, 1, 1, 1]
    assert [len(call) for call in made["batch8"].calls] == [8]
    assert [len(call) for call in made["batch32"].calls] == [32]
    assert made["prefill"].prefill
    assert not made["single"].prefill
    for case in made.values():
        length = {"prefill": PREFILL_TOKENS, "prefill2048": LONG_TOKENS}.get(case.name, PROMPT_TOKENS)
        assert case.prompt_tokens == length
        assert {len(prompt) for call in case.calls for prompt in call} == {length}


@pytest.mark.parametrize(
    ("context", "left"),
    [
        (4096, ["prefill", "prefill2048", "single", "batch8", "batch32"]),
        (2048, ["prefill", "single", "batch8", "batch32"]),  # one token more than the prompt is needed
        (159, ["batch8", "batch32"]),
    ],
)
def test_cases_that_the_context_cannot_hold_are_left_out(context: int, left: list[str]) -> None:
    from cases import cases, random_prompts

    found = cases(random_prompts(300, bos=0, special=16), False, context)
    assert [case.name for case in found] == left


def test_of_a_gguf_file_the_formats_are_its_own() -> None:
    from variants import Variant, default_variants

    assert [str(v) for v in default_variants(2, gguf=True)] == [
        "nextn:gguf", "nextn:gguf:mtp2", "llamacpp:gguf", "llamacpp:gguf:mtp2",
    ]  # fmt: skip
    assert Variant.parse("llamacpp:mtp3", gguf=True) == Variant("llamacpp", "gguf", 3)
    with pytest.raises(
        ValueError, match=r"no measurement of GGUF files with engine 'vllm'; choose from next"
    ):
        Variant.parse("vllm", gguf=True)
    with pytest.raises(ValueError, match="nextn cannot do 'bfloat16'; it can do gguf, mtpK"):
        Variant.parse("nextn:bfloat16", gguf=True)
    with pytest.raises(ValueError, match="nextn cannot do 'gguf'; it can do float32, bfloat16, mtpK"):
        Variant.parse("nextn:gguf")


def test_code_prompts_are_held_out_code(peers: Path) -> None:
    from cases import PREFILL_TOKENS, code_prompts

    from nextn.bench.prompts import heldout_prompts
    from nextn.config import EMBEDDED, model_folder
    from nextn.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
    prompts = code_prompts(tokenizer, 3)
    assert [len(p) for p in prompts] == [PREFILL_TOKENS] * 3
    for ids, text in zip(prompts, heldout_prompts(3), strict=True):
        assert tokenizer.decode(ids[1:9]) == text[: len(tokenizer.decode(ids[1:9]))]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--engines", "nextn,sglang"], "there is no engine 'sglang'"),
        (["--drafts", "0"], "--drafts is 0; it must be at least 1"),
        (["--threads", "4096"], "--threads is 4096; this machine has"),
        (["--cases", "single,double"], "--cases has double; choose from prefill, prefill2048, single"),
        (["--gguf", __file__, "--prompts", "code"], "--prompts code needs a checkpoint folder's tokenizer"),
        (["--gguf", "nowhere.gguf"], "nowhere.gguf: there is no such file"),
        (["--model", "nowhere.gguf"], "nowhere.gguf: there is no such file"),
        (
            ["--gguf", __file__, "--dir", "nowhere"],
            "--gguf needs llama.cpp, which also says what the file holds",
        ),
    ],
)
def test_mistakes_are_named(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    from run import parse

    with pytest.raises(SystemExit) as end:
        parse(argv)
    assert end.value.code == 2
    assert says in capsys.readouterr().err
