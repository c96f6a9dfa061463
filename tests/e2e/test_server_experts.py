"""Experts' rows, recorded by real servers, and a placement that is planned from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.native_kernels import built_levels
from support.server_process import ServerProcess, check_ended
from support.two_replicas import post

from nextn.bench.prompts import heldout_prompts
from nextn.cli import main
from nextn.distributed.placement_file import read_dump
from nextn.server.http.expert_record import FOLDER_VARIABLES

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")
LAYERS, EXPERTS, CHOSEN = 11, 8, 2  # of the embedded model
PROMPTS, TOKENS = 3, 24


def serve(folder: Path, *options: str) -> ServerProcess:
    command = ("-m", "nextn", "serve", "--port", "0", "--device", "cpu", "--threads", "1")
    drafts = ("--kv-cache-tokens", "4096", "--speculative-num-steps", "2", "--check-integrity")
    return ServerProcess([*command, *drafts, *options], {FOLDER_VARIABLES[0]: str(folder)})


def texts(server: ServerProcess) -> list[str]:
    body: dict[str, Any] = {
        "prompt": heldout_prompts(PROMPTS),
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    return [choice["text"] for choice in post(server, **body).json()["choices"]]


def record(server: ServerProcess, action: str) -> httpx.Response:
    return httpx.post(f"{server.url}/{action}_expert_distribution_record", timeout=30)


def recorded(server: ServerProcess) -> tuple[list[str], dict[str, Any]]:
    """Texts, and the answer to a dump of their rows."""
    assert record(server, "start").status_code == 200
    found = texts(server)
    assert record(server, "stop").status_code == 200
    assert texts(server) == found  # these rows are not counted
    answer = record(server, "dump")
    assert answer.status_code == 200
    return found, answer.json()


def test_a_placement_from_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two groups have it, with the texts of one engine. Each counts its own requests' rows, step by step."""
    placement = tmp_path / "experts.json"
    with serve(tmp_path) as server:
        expected, told = recorded(server)
        assert record(server, "dump").json()["error"]["code"] == "nothing_recorded"
        assert server.metrics()["nextn:rank_sent_bytes_total"] == 0
        assert "nextn:expert_load_imbalance" not in server.metrics()
    dump = read_dump(Path(told["path"]))
    assert dump.target.shape == (LAYERS, EXPERTS)
    assert dump.nextn is not None
    assert dump.nextn.shape == (1, EXPERTS)
    assert len(set(dump.target.sum(axis=1).tolist())) == 1  # each row has as many experts in every layer
    assert dump.target.sum() == told["total"] >= LAYERS * CHOSEN * PROMPTS * TOKENS
    assert dump.nextn.sum() == told["nextn_total"] > 0
    spare = ["--ep-size", "2", "--ep-num-redundant-experts", "2"]
    assert main(["eplb", told["path"], *spare, "--output", str(placement)]) == 0
    assert "written" in capsys.readouterr().out
    options = (
        "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention", *spare,
        "--init-expert-location", str(placement), "--load-balance-method", "round_robin",
        "--expert-distribution-recorder-mode", "per_pass",
    )  # fmt: skip
    with serve(tmp_path, *options) as server:
        assert any(line.split()[:3] == ["groups", "2", "(DP"] for line in server.stdout)
        assert server.stdout[-1].endswith(" on 2 groups)")
        shared = "experts shared by 2 ranks in 2 shards, with 2 redundant ones in each layer"
        assert shared in [" ".join(line.split()) for line in server.stdout]
        info = httpx.get(server.url + "/server_info").json()
        found = [info[name] for name in ("tp_size", "dp_size", "ep_size", "enable_dp_attention")]
        assert found == [2, 2, 2, True]
        again, told = recorded(server)
        assert again == expected
        metrics = server.metrics()
        for rank in (0, 1):
            assert 1 <= metrics[f'nextn:expert_load_imbalance{{dp_rank="{rank}"}}'] < 2
            assert metrics[f'nextn:rank_sent_bytes_total{{dp_rank="{rank}"}}'] > 0
        server.process.terminate()
        check_ended(server, 0)
    content = json.loads(Path(told["path"]).read_text())
    assert told["engines"] == len(content["nextn_steps"]) == 2
    assert told["steps"] == sum(content["nextn_steps"]) == len(content["logical_count"])
    assert min(content["nextn_steps"]) > 0
    assert all(sum(layer) > 0 for step in content["logical_count"] for layer in step)
