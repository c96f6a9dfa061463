"""The `nextn` command itself: dispatch, speed, exit codes; and its surface, pinned."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys

import pytest

import nextn
from nextn.cli import COMMANDS, main
from nextn.cli.options import options_of
from nextn.server_config import ServerConfig

# A change here is a change that users see: it belongs into the CHANGELOG.
SERVE_FLAGS = """
--model-path --model --load-format --num-hidden-layers-override --allow-non-finite-weights
--dtype --device --kernel-backend --cpu-isa
--quantization --quantization-group-size --gguf-activations
--context-length --max-model-len --random-seed --seed
--threads --tp-size --tp --tensor-parallel-size --nnodes --node-rank
--dist-init-addr --nccl-init-addr --dist-timeout --distributed-timeout-seconds --numa
--distributed-executor-backend
--ep-size --ep --expert-parallel-size --ep-num-redundant-experts --ep-dispatch-algorithm
--ep-dispatch-dtype --deepep-dispatcher-output-dtype
--init-expert-location --enable-eplb --eplb-rebalance-num-iterations --eplb-rebalance-layers-per-chunk
--eplb-min-rebalancing-utilization-threshold --expert-distribution-recorder-mode
--enable-two-batch-overlap --enable-dp-attention
--kv-cache-tokens --max-total-tokens --mem-fraction-static --max-memory-utilization
--gpu-memory-utilization --device-memory-utilization --page-size --block-size --disable-radix-cache
--disable-cuda-graph --enforce-eager --chunked-prefill-size
--max-tokens-per-batch --max-num-batched-tokens --prefill-attention --max-running-requests
--max-seqs-per-batch --max-num-seqs
--overlap-schedule --check-integrity --speculative-algorithm --speculative-algo --spec-method
--speculative-draft-model-path --speculative-draft-model --draft-model --spec-model --step-cost-cache
--speculative-num-steps --num-speculative-tokens --spec-tokens
--speculative-eagle-topk --speculative-draft-model-quantization
--speculative-token-map --speculative-simulate-accept-length --speculative-num-draft-tokens
--speculative-verify --speculative-accept-threshold-single --speculative-accept-threshold-acc
--grammar-backend --constrained-json-any-whitespace --grammar-compile-timeout --grammar-memory-mb
--host --port --served-model-name --model-id
--chat-template --tool-call-parser --reasoning-parser
--enable-priority-scheduling --schedule-low-priority-values-first
--api-key --max-queued-requests --max-num-queued-reqs --request-queue-size
--max-request-bytes --request-timeout --client-timeout --watchdog-timeout
--max-engine-restarts --enable-metrics --decode-log-interval --log-level --log-format --log-requests
--log-requests-level --otlp-traces-endpoint --profile-steps --profile-dir --shutdown-timeout
--dp-size --dp --data-parallel-size --load-balance-method
--disaggregation-mode --disaggregation-bootstrap-port --disaggregation-transfer-port --transfer-listen-port
--disaggregation-transfer-backend
--disaggregation-fallback --disaggregation-timeout
"""


def test_surface_of_serve() -> None:
    assert [flag for option in options_of(ServerConfig) for flag in option.flags] == SERVE_FLAGS.split()


def test_every_command_is_a_module_with_help() -> None:
    assert "serve" in COMMANDS
    program = (
        "import importlib, sys\n"
        "from nextn.cli import COMMANDS\n"
        "for module in map(importlib.import_module, COMMANDS.values()):\n"
        "    assert isinstance(module.HELP, str)\n"
        "    assert callable(module.run) and callable(module.add_arguments)\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'zmq', 'tokenizers', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("command", ["chat", "top"])
def test_the_key_of_a_running_server(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own variable first, then OpenAI's; an empty one is none."""
    for ours, theirs, key in (("a", "b", "a"), ("", "b", "b"), (None, "b", "b"), ("", "", None)):
        for name, value in (("NEXTN_API_KEY", ours), ("OPENAI_API_KEY", theirs)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        parser = argparse.ArgumentParser()
        importlib.import_module(COMMANDS[command]).add_arguments(parser)
        assert parser.parse_args([]).api_key == key
        assert parser.parse_args(["--api-key", "c"]).api_key == "c"


def test_http_process_does_without_torch() -> None:
    program = "import sys, nextn.server.web; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nextn: error: "),
        (["bake"], "nextn: error: argument <command>: invalid choice: 'bake'"),
        (["serve", "--bake"], "nextn serve: error: unrecognized arguments: --bake"),
        (["serve", "--pp-size", "2"], "nextn serve: error: --pp-size 2 is not supported"),
        (["demo", "--quik"], "nextn demo: error: unrecognized arguments: --quik (did you mean --quick?)"),
        (["bench", "serve", "--num-prompt", "2"], "nextn bench serve: error: unrecognized arguments: --num"),
    ],
)
def test_wrong_commands_exit_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2
    assert capsys.readouterr().err.startswith(message)


def test_values_out_of_range_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--max_num_seqs", "0"]) == 2
    assert capsys.readouterr().err.startswith("nextn serve: error: --max-running-requests is 0")


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    module = importlib.import_module(COMMANDS[command])
    monkeypatch.setattr(module, "run", interrupted)
    monkeypatch.setattr(module, "add_arguments", lambda parser: None)
    assert main([command]) == 130
    assert capsys.readouterr() == ("", f"nextn {command}: ended by Ctrl-C\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--version"])
    assert error.value.code == 0
    assert capsys.readouterr().out == f"nextn {nextn.__version__}\n"


@pytest.mark.parametrize("module", ["nextn", "nextn.launch_server"])
def test_modules_as_programs(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True
    )
    assert ("--model-path" in done.stdout) == (module == "nextn.launch_server")
    assert done.stderr == ""
