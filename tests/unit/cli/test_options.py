"""Options: every spelling, every refusal, and the documented table."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from nextn.cli import Parser, dashed
from nextn.cli.errors import CommandError
from nextn.cli.options import add_options, options_markdown, options_of, parse
from nextn.config import EngineConfig
from nextn.draft import AUTO_STEPS
from nextn.server_config import ServerConfig

ROOT = Path(__file__).parents[3]


def read(*words: str) -> ServerConfig:
    parser = Parser(prog="nextn serve", allow_abbrev=False)
    add_options(parser, ServerConfig)
    return parse(parser.parse_args([dashed(word) for word in words]), ServerConfig)


def test_nothing_given_is_the_default_config() -> None:
    assert read() == ServerConfig()


@pytest.mark.parametrize("option", list(options_of(ServerConfig)), ids=lambda o: o.name)
def test_every_flag_sets_its_field(option: object) -> None:
    value: dict[type, str] = {str: "nextn-tiny", int: "17", float: "0.5"}
    special = {
        "speculative_num_steps": "3", "speculative_eagle_topk": "1", "speculative_num_draft_tokens": "3",
        "chunked_prefill_size": "600", "load_format": "dummy", "dtype": "float32", "device": "cpu",
        "prefill_attention": "naive", "kernel_backend": "reference", "quantization": "w8a16",
        "speculative_algorithm": "EAGLE", "log_level": "debug", "log_format": "json",
        "log_requests_level": "3", "cpu_isa": "avx2", "overlap_schedule": "on",
        "speculative_draft_model_quantization": "w8a16", "speculative_simulate_accept_length": "1.5",
        "speculative_verify": "block", "speculative_accept_threshold_single": "1.0",
        "speculative_accept_threshold_acc": "1.0", "tool_call_parser": "deepseekv31",
        "reasoning_parser": "deepseek-v3",
        "grammar_backend": "xgrammar", "load_balance_method": "round_robin", "numa": "off",
        "nnodes": "1", "node_rank": "0", "dist_init_addr": "node0:5000",
        "distributed_executor_backend": "mp",
        "ep_size": "1", "ep_num_redundant_experts": "0", "init_expert_location": "trivial",
        "ep_dispatch_algorithm": "dynamic", "ep_dispatch_dtype": "fp8",
        "expert_distribution_recorder_mode": "per_pass",
        "disaggregation_mode": "decode", "disaggregation_transfer_backend": "shm",
        "disaggregation_fallback": "off", "quantization_group_size": "64",
        "gguf_activations": "bf16",
    }  # fmt: skip
    others = ("--tp-size", "2", "--ep-size", "2") if option.name == "enable_eplb" else ()
    others = ("--quantization", "w4a16") if option.name == "quantization_group_size" else others
    others = ("--profile-dir", "traces") if option.name == "profile_steps" else others
    for flag in option.flags:
        for name in (flag, "--" + flag[2:].replace("-", "_")):
            if option.type is bool:
                assert getattr(read(name, *others), option.name) is True
                assert getattr(read("--no-" + name[2:]), option.name) is False
            else:
                text = special.get(option.name, value[option.type])
                assert getattr(read(name, text, *others), option.name) == option.type(text)
                assert read(f"{name}={text}", *others) == read(name, text, *others)


def test_at_least_one_replica() -> None:
    with pytest.raises(CommandError, match="--dp-size is 0: it must be at least 1"):
        read("--dp-size", "0")


def test_a_word_for_a_value() -> None:
    assert read("--speculative-num-steps", "auto").speculative_num_steps == AUTO_STEPS
    assert read("--num-speculative-tokens=auto").speculative_num_steps == AUTO_STEPS
    assert read().speculation.num_steps == 8


def test_sglangs_name_of_a_default() -> None:
    assert read("--constrained-json-disable-any-whitespace") == ServerConfig()
    assert read("--constrained-json-any-whitespace").constrained_json_any_whitespace is True


def test_xllm_booleans() -> None:
    assert read("--enable_prefix_cache", "false").disable_radix_cache is True
    assert read("--enable_prefix_cache=true").disable_radix_cache is False
    assert read("--enable_prefix_cache").disable_radix_cache is False
    assert read("--enable_chunked_prefill", "true") == ServerConfig()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--speculative-num-steps", "two"], "'two': it must be auto, or a whole number from 0 (off) to 16"),
        (["--speculative-num-steps", "-1"], "'-1': it must be auto, or a whole number from 0 (off) to 16"),
        (["--enable_prefix_cache=maybe"], "--enable-prefix-cache is 'maybe'"),
        (["--port", "many"], "argument --port: 'many': it must be a whole number"),
        (["--dtype", "float8"], "argument --dtype: invalid choice"),
        (["--mem-frac", "0.5"], "--mem-frac (did you mean --mem-fraction-static?)"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_command_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        read(*words)
    assert error.value.code == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.startswith("nextn serve: error: ")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "--port is 70000: it must be between 0 and 65535"),
        (["--page-size", "0"], "--page-size is 0"),
        (["--profile-steps", "-1"], "--profile-steps is -1: it must be 0 or more"),
        (["--profile-steps", "5"], "--profile-steps 5 needs --profile-dir"),
        (["--speculative-algorithm", "NONE", "--speculative-num-steps", "2"], "--speculative-num-steps"),
        (["--speculative-num-steps", "17"], "it must be auto, or a whole number from 0"),
    ],
)
def test_values_out_of_range(words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as error:
        read(*words)
    assert error.value.exit_code == 2


def test_engine_commands_take_engine_options_only() -> None:
    parser = Parser(prog="nextn generate")
    add_options(parser, EngineConfig)
    assert type(parse(parser.parse_args(["--dtype", "float32"]), EngineConfig)) is EngineConfig
    with pytest.raises(SystemExit):
        parser.parse_args(["--port", "1"])


def test_help_shows_every_documented_flag() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, ServerConfig)
    shown = parser.format_help()
    assert all(flag in shown for option in options_of(ServerConfig) for flag in option.flags)


def test_options_page_is_current() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == options_markdown(), "run: python -m nextn.cli.options > docs/options.md"


def test_vllms_scheduling_policy_and_parser_names() -> None:
    assert read("--scheduling-policy", "priority").schedule_low_priority_values_first is True
    assert read("--scheduling-policy", "fcfs") == ServerConfig()
    assert read("--tool-call-parser", "deepseek_v31").tool_call_parser == "deepseekv31"
    assert read("--reasoning-parser", "deepseek_r1").reasoning_parser == "deepseek-r1"
