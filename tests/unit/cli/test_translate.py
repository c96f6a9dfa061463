"""Command lines of SGLang, vLLM and xLLM. flags/ lists every option that their own --help shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextn.cli.options import add_model, add_options, parse
from nextn.cli.parser import Parser, dashed
from nextn.cli.translate import translate
from nextn.config import EngineConfig
from nextn.server_config import ServerConfig

FLAGS = Path(__file__).parent / "flags"
JSON = {
    **dict.fromkeys(("--speculative-config", "-sc"), '{"method": "mtp"}'),
    "--eplb-config": '{"step_interval": 5}',
    "--profiler-config": '{"profiler": "torch", "torch_profiler_dir": "/traces"}',
    "--kv-transfer-config": '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}',
}
LINES = [
    (file.stem, *line.split())
    for file in sorted(FLAGS.glob("*.txt"))
    for line in file.read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def parser() -> Parser:
    made = Parser(prog="nextn serve", allow_abbrev=False)
    add_model(made)
    add_options(made, ServerConfig)
    return made


def read(*words: str) -> tuple[ServerConfig, str]:
    """The config, and the note for the log."""
    args = parser().parse_args([dashed(word) for word in words])
    return parse(args, ServerConfig), args.note


def error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        read(*words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said.removeprefix("nextn serve: error: ").removesuffix(" (see nextn serve --help)\n")


def test_the_lists_are_whole() -> None:
    count = {engine: sum(line[0] == engine for line in LINES) for engine in ("sglang", "vllm", "xllm")}
    assert count == {"sglang": 547, "vllm": 430, "xllm": 188}


@pytest.mark.parametrize("engine", ["sglang", "vllm", "xllm"])
def test_every_option_of_another_engine(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is nextn's own or another name of it, noted, or refused with a reason; none is unrecognized. What
    is noted leaves nothing of itself, and a model beside it stays."""
    known = parser()._option_string_actions
    for name, flag, kind, outcome in LINES:
        if name != engine:
            continue
        value = JSON.get(flag, "2")
        words = [flag, *([value] if kind == "value" else [])]
        if outcome == "refused":
            with pytest.raises(SystemExit):
                parser().parse_args(words)
            assert " not supported: " in (said := capsys.readouterr().err), flag
            assert "unrecognized" not in said, flag
            continue
        line = [*words, "MODEL"] if kind == "switch" else ["MODEL", *words]
        left, note = translate(line, known)
        assert outcome == ("noted" if note else "taken"), (flag, note)
        if note:
            assert left == ["MODEL"], flag
            assert parser().parse_args(words).note == note
        else:
            assert known.keys() & set(left), flag


def test_lines_that_people_copy() -> None:
    config, note = read(
        "--model-path", "nextn-tiny", "--tp", "1", "--dp-size=1", "--trust-remote-code",
        "--cuda-graph-max-bs", "160", "--mem-fraction-static", "0.8", "--speculative-algo", "eagle",
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", "4", "--schedule-policy", "lpm", "--attention-backend", "AUTO",
    )  # fmt: skip
    assert config == ServerConfig(
        mem_fraction_static=0.8,
        speculative_algorithm="EAGLE",
        speculative_num_steps=3,
        speculative_num_draft_tokens=4,
    )
    assert note.startswith("these options have no effect here: --trust-remote-code (no code")
    assert "--trust-remote-code (no code of a checkpoint is ever run)" in note
    assert "\n" not in note
    config, note = read(
        "-tp", "1", "--enable-prefix-caching", "--enforce-eager", "--disable-log-requests", "nextn-tiny",
        "--speculative-config", '{"method": "DeepSeek_MTP", "num_speculative_tokens": 2}',
        "--dtype", "BF16", "--max-num-seqs", "8",
    )  # fmt: skip
    assert config == ServerConfig(
        speculative_algorithm="NEXTN", speculative_num_steps=2, dtype="bfloat16", max_running_requests=8,
        disable_cuda_graph=True,
    )  # fmt: skip
    assert "--disable-log-requests (requests are logged only" in note
    config, note = read(
        "--model=nextn-tiny", "--nnodes=1", "--node_rank=0", "--enable_prefix_cache=false",
        "--max_memory_utilization=0.7", "--enable_graph=true", "--enable_shm", "false", "--block_size=32",
    )  # fmt: skip
    assert config == ServerConfig(disable_radix_cache=True, mem_fraction_static=0.7, page_size=32)
    assert "--enable-shm false" in note


def test_the_model_stands_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["M", "--port", "1"], ["--port", "1", "M"], ["--enable-metrics", "M", "--port", "1"]):
        assert read(*words)[0] == ServerConfig(model_path="M", port=1)
    assert read("M", "--model-path", "M")[0].model_path == "M"
    assert "unrecognized arguments: N" in error(capsys, "M", "N")


def test_all_problems_of_a_line_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    said = error(
        capsys, "--pp", "8", "--enable-lora", "--lora-paths", "a", "b", "--bake", "--mem-fraction", "0.5"
    )
    assert said == (
        "--pp 8 is not supported: nextn runs ranks (--tp-size, --nnodes), replicas (--dp-size) and shards of "
        "experts (--ep-size) only; --enable-lora, --lora-paths are not supported: LoRA adapters are not "
        "served; "
        "unrecognized arguments: --bake, --mem-fraction (did you mean --mem-fraction-static?)"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--disable-decode-cuda-graph", "--device", "cuda"],
            "--disable-decode-cuda-graph is not supported: a CPU has no CUDA",
        ),
        (["--disable-prefill-cuda-graph", "--device=cuda"], "only --disable-cuda-graph switches them off"),
        (["--max-prefill-tokens", "100", "--chunked-prefill-size", "512"], "is the only limit of a step"),
        (
            ["--context-length", "5", "--max-model-len", "6"],
            "--context-length 5 and --max-model-len 6 are the same option",
        ),
        (["--speculative-config", "{method: mtp}"], "its value '{method: mtp}' is not JSON"),
        (["--speculative-config", "[1]"], "its value is a JSON list"),
        (["--speculative-config", '{"method": "medusa"}'], "its method is 'medusa'"),
        (
            ["--speculative-config", '{"b": 1, "a": 2}'],
            "its keys a, b are unknown to nextn; it reads method",
        ),
        (["--speculative-config.method", "mtp"], "--speculative-config.method is not supported"),
        (["--no-enable-chunked-prefill"], "--no-enable-chunked-prefill is not supported"),
        (["--enable-metrics=maybe"], "--enable-metrics is 'maybe': it must be true or false"),
        (
            ["--enable_chunked_prefill", "false"],
            "--enable-chunked-prefill false is not supported: prompts are",
        ),
        (["-x"], "unrecognized arguments: -x"),
        (
            ["--attn-dp-size", "2", "--dp", "4"],
            "it is 2, and another name of the same option is 4; give one of them",
        ),
        (
            ["--attn-dp-size", "1", "--dp", "2"],
            "it is 1, and another name of the same option is 2; give one of them",
        ),
        (
            ["--eplb-config", '{"window_size": 5}'],
            "its keys window_size are unknown to nextn; it reads step",
        ),
        (["--eplb-config", "2"], "its value is a JSON int"),
        (["--eplb-update-interval", "9"], "--eplb-rebalance-num-iterations, --eplb-min"),
        (["--redundant_experts_num", "x"], "give --ep-num-redundant-experts, for all"),
        (["--tp", "4", "-ep", "--ep", "2", "--ep-size", "4"], "--ep 2 and --ep-size 4 are the same option"),
        (["--load-balance-method", "follow_bootstrap_room"], "invalid choice: 'follow_bootstrap_room'"),
    ],
)
def test_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error(capsys, *words)


def test_replicas() -> None:
    for words in (["--dp", "2"], ["-dp", "2"], ["--dp_size=2"], ["--data-parallel-size", "2"]):
        assert read(*words) == (ServerConfig(dp_size=2), "")
    assert read("--dp-size", "1", "--enable-dp-attention")[0].attention_dp == 1
    assert read("--dp-size=2", "--enable-dp-attention", "false") == (ServerConfig(dp_size=2), "")
    names = {"auto": "prefix", "minimum_tokens": "total_tokens", "shortest_queue": "total_requests"}
    for sglangs, ours in names.items():
        assert read("--load-balance-method", sglangs)[0].load_balance_method == ours


@pytest.mark.parametrize(
    ("words", "world", "groups", "shards"),
    [
        ("--tp 4 --dp 2 --enable-dp-attention --ep 4", 4, 2, 4),
        ("--tp 4 --attn-dp-size 2", 4, 2, 1),
        ("--tp 4 --attention-data-parallel-size 2 --dp-size 2 --enable-dp-attention", 4, 2, 1),
        ("--tp 4 --enable-ep-moe", 4, 1, 4),
        ("--tp 4 --enable-deepep-moe --moe-a2a-backend deepep", 4, 1, 4),
        ("--tp 8 --dp 2 --enable-dp-attention --ep-size 2 --enable-ep-moe", 8, 2, 2),
        ("-tp 4 --enable-expert-parallel", 4, 1, 4),
        ("--data-parallel-size 2 --tensor-parallel-size 4 --enable-expert-parallel", 8, 2, 8),
        ("-ep nextn-tiny -dp=2 -tp=4", 8, 2, 8),
        ("--data-parallel-size 2 --enable-expert-parallel", 2, 2, 2),
        ("--tp 4 --dp 2 --enable-dp-attention --enable-expert-parallel", 4, 2, 4),
        ("-tp 4 --enable-expert-parallel=false", 4, 1, 1),
        ("--tp_size 4 --ep_size 4 --expert_parallel_degree=2", 4, 1, 4),
        ("--enable-expert-parallel", 1, 1, 1),
    ],
)
def test_shared_experts(words: str, world: int, groups: int, shards: int) -> None:
    config, _ = read(*words.split())
    assert (config.tp_size, config.attention_dp, config.ep_size) == (world, groups, shards)


def test_balance_of_experts() -> None:
    line = ["--tp", "4", "-ep", "--enable-eplb", "--eplb-config"]
    config, note = read(*line, '{"num_redundant_experts": 8, "step_interval": 50, "policy": "default"}')
    assert (config.ep_num_redundant_experts, config.eplb_rebalance_num_iterations, note) == (8, 50, "")
    assert "--eplb-config (its values are the defaults)" in read("--eplb-config", '{"use_async": false}')[1]
    config, _ = read("--tp_size=4", "--ep_size=4", "--enable_eplb=true", "--redundant_experts_num=2")
    assert (config.enable_eplb, config.ep_num_redundant_experts) == (True, 8)


def test_an_engine_alone_has_no_groups(capsys: pytest.CaptureFixture[str]) -> None:
    made = Parser(prog="nextn generate", allow_abbrev=False)
    add_options(made, EngineConfig)
    assert parse(made.parse_args(["--tp", "2", "--enable-ep-moe"]), EngineConfig).ep_size == 2
    for words in (["--attn-dp-size", "2"], ["--enable-dp-attention"]):
        with pytest.raises(SystemExit):
            made.parse_args(words)
        assert f"{words[0]} is not supported: nextn runs ranks" in capsys.readouterr().err


def test_who_starts_the_ranks() -> None:
    by_ray = ServerConfig(tp_size=2, distributed_executor_backend="ray")
    assert read("-tp", "2", "--distributed-executor-backend", "ray")[0] == by_ray
    assert read("--tp-size", "2", "--use-ray")[0] == by_ray
    assert read("--distributed-executor-backend", "uni")[0] == ServerConfig()


def test_other_names_of_options() -> None:
    assert read("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')[
        0
    ] == ServerConfig(speculative_algorithm="NGRAM", speculative_num_steps=3)
    whole = '{"model": "D", "rejection_sample_method": "block", "draft_tensor_parallel_size": 1, "x": null}'
    assert read("-sc", whole)[0] == ServerConfig(speculative_draft_model_path="D", speculative_verify="block")
    assert read("--max-prefill-tokens", "600")[0].chunked_prefill_size == 600
    config, note = read("--max-prefill-tokens", "16384", "--chunked-prefill-size", "600")
    assert (config.chunked_prefill_size, "--max-prefill-tokens 16384" in note) == (600, True)
    assert read("--scheduling-policy", "priority")[0].schedule_low_priority_values_first
    assert read("--schedule-policy", "priority")[0].enable_priority_scheduling
    assert read("--disable-log-stats")[0].decode_log_interval == 0
    assert read("--enable-metrics=false")[0].enable_metrics is False
    assert read("--log-level", "INFO", "--load-format", "SafeTensors")[0] == ServerConfig()
    assert read("--no-enable-lora", "--cpu-offload-gb", "0")[1].count("(") == 2


@pytest.mark.parametrize(
    ("words", "size", "nodes", "rank", "address"),
    [
        ("--tp 4 --nnodes 2 --node-rank 1 --dist-init-addr a:5", 4, 2, 1, "a:5"),
        ("--tp 4 --nnodes 2 --nccl-init-addr a:5", 4, 2, 0, "a:5"),
        ("-tp 4 -n 2 -r 1 --master-addr a", 4, 2, 1, "a:29501"),
        ("-tp 4 -n 2 --master-addr a --master-port 7", 4, 2, 0, "a:7"),
        ("-tp 4 -n 2 --master-port 7", 4, 2, 0, "127.0.0.1:7"),
        ("--nnodes=2 --node_rank=1 --master_node_addr=a:9", 2, 2, 1, "a:9"),
    ],
)
def test_several_machines(words: str, size: int, nodes: int, rank: int, address: str) -> None:
    """xLLM's --nnodes counts devices."""
    config, note = read(*words.split())
    assert (config.tp_size, config.nnodes, config.node_rank, config.dist_init_addr) == (
        size,
        nodes,
        rank,
        address,
    )
    assert note == ""


def test_xllms_groups() -> None:
    """Its --dp_size is of attention."""
    config, note = read("--nnodes=4", "--node_rank=1", "--master_node_addr=a:9", "--dp_size=2", "--ep_size=4")
    assert (config.tp_size, config.nnodes, config.node_rank, config.ep_size) == (4, 4, 1, 4)
    assert (config.attention_dp, config.of_replica().tp_size, note) == (2, 2, "")


def test_one_machine_looks_for_nobody() -> None:
    config, note = read("--nnodes", "1", "--master_node_addr", "a:9", "--master-port", "3")
    assert (config.nnodes, config.dist_init_addr) == (1, None)
    assert "(there is one machine only)" in note


def test_prefill_and_decode_servers(capsys: pytest.CaptureFixture[str]) -> None:
    config, note = read(
        "M", "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "9000",
        "--disaggregation-decode-tp", "4", "--disaggregation-enable-kv-checksum",
    )  # fmt: skip
    assert config == ServerConfig(
        model_path="M", disaggregation_mode="prefill", disaggregation_bootstrap_port=9000
    )
    assert "--disaggregation-decode-tp (each server learns" in note
    for backend in ("mooncake", "fake", "ascend"):
        said = error(capsys, "M", "--disaggregation-transfer-backend", backend)
        assert f"{backend!r} (choose from 'tcp', 'shm', 'nixl')" in said
    _, note = read("M", "--disaggregation-mode", "decode", "--disaggregation-ib-device", "mlx5_0")
    assert "--disaggregation-ib-device (--disaggregation-transfer-backend selects" in note


def test_xllm_says_the_part_by_its_role(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--enable_disagg_pd"], ["--enable_disagg_pd=true"], ["--enable_disagg_pd", "true"]):
        for role in ("PREFILL", "DECODE"):
            config, _ = read("M", *words, "--instance_role", role)
            assert config == ServerConfig(model_path="M", disaggregation_mode=role.lower())
    assert read("M", "--enable_disagg_pd", "--instance_role=MIX")[0] == ServerConfig(model_path="M")
    assert read("M", "--instance_role=DEFAULT")[0] == ServerConfig(model_path="M")
    for words in ([], ["--enable_disagg_pd=false"], ["--enable_disagg_pd", "false"]):
        said = error(capsys, "M", *words, "--instance_role", "DECODE")
        assert "give that too, or --disaggregation-mode decode" in said
    assert "it must be PREFILL, DECODE, MIX or DEFAULT" in error(capsys, "M", "--instance-role", "x")


def test_vllm_says_the_part_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    def given(**keys: object) -> list[str]:
        return ["M", "--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", **keys})]

    assert read(*given(kv_role="kv_producer"))[0].disaggregation_mode == "prefill"
    config, note = read(*given(kv_role="kv_consumer", kv_load_failure_policy="fail", kv_buffer_device="cpu"))
    assert (config.disaggregation_mode, config.disaggregation_fallback) == ("decode", "off")
    assert (
        "--kv-transfer-config with kv_buffer_device (pages are copied from pool to pool, without a buffer)"
        in note
    )
    for keys, why in (
        ({"kv_role": "kv_both"}, "or give --disaggregation-mode"),
        ({"kv_role": "kv_producer", "kv_connector": "P2pNcclConnector"}, "it must be NixlConnector"),
        ({"kv_role": "kv_producer", "kv_load_failure_policy": "x"}, "it must be recompute or fail"),
        ({"kv_role": "kv_producer", "kv_rank": 1}, "its keys kv_rank are unknown"),
    ):
        assert why in error(capsys, *given(**keys))


def test_only_servers_share_out_requests() -> None:
    known = ("--device",)
    for words in (["--instance-role", "PREFILL"], ["--kv-transfer-config", '{"kv_connector": 1}']):
        with pytest.raises(ValueError, match="only nextn serve can split requests"):
            translate(words, known)


def test_vllms_profiler(capsys: pytest.CaptureFixture[str]) -> None:
    given = '{"profiler": "torch", "torch_profiler_dir": "/traces", "torch_profiler_with_stack": false}'
    config, note = read("--profiler-config", given)
    assert (config.profile_dir, config.profile_steps, note) == ("/traces", 0, "")
    assert read("--profiler-config", '{"profiler": "torch"}') == (ServerConfig(), "")
    said = error(capsys, "--profiler-config", '{"profiler": "cuda"}')
    assert "its profiler is 'cuda'" in said
    said = error(capsys, "--profiler-config", '{"torch_profiler_dir": "/d", "delay_iterations": 3}')
    assert "its keys delay_iterations are unknown to nextn" in said
    assert "/start_profile" in error(capsys, "--profile-max-prompt-length", "3")
    with pytest.raises(ValueError, match="this command records no profiles"):
        translate(["--profiler-config", given], ["--port"])
