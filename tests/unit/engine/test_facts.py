"""What ranks on several machines must have alike, and what may differ."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.native_kernels import built_levels

from nextn.config import EngineConfig, model_folder
from nextn.engine.facts import facts
from nextn.families.digest import digest
from nextn.server_config import ServerConfig

CONFIG = EngineConfig(tp_size=2, nnodes=2, dist_init_addr="127.0.0.1:5000")


def test_what_may_differ() -> None:
    other = replace(CONFIG, node_rank=1, threads=3, numa="off", dist_init_addr="node0:5000", dist_timeout=9.0)
    assert facts(CONFIG) == facts(other)


@pytest.mark.parametrize("change", [{"page_size": 32}, {"tp_size": 4}, {"speculative_num_steps": 2}])
def test_what_may_not(change: dict[str, int]) -> None:
    (name,) = change
    ours, theirs = facts(CONFIG), facts(replace(CONFIG, **change))  # type: ignore[arg-type]
    assert {key for key in ours if ours[key] != theirs[key]} == {"--" + name.replace("_", "-")}


def test_groups_are_told_from_ranks_of_one() -> None:
    one = ServerConfig(tp_size=4, nnodes=2, dist_init_addr="127.0.0.1:5000", threads=1)
    two = replace(one, dp_size=2, enable_dp_attention=True).of_replica()
    assert facts(one).items() - facts(two).items() == {("--dp-size with --enable-dp-attention", "1")}


def test_the_level_of_the_kernels_is_what_counts() -> None:
    if len(built := built_levels()) < 2:
        pytest.skip("one level of native kernels")
    assert facts(replace(CONFIG, cpu_isa=built[-1])) == facts(CONFIG)
    differing = facts(replace(CONFIG, cpu_isa=built[0])).items() - facts(CONFIG).items()
    assert differing == {("the kernels' level (--cpu-isa)", built[0])}


def test_on_gpus_other_versions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """And --device is what it comes to."""
    on_cpus = facts(replace(CONFIG, device="cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_gpus = facts(CONFIG)
    assert (on_cpus["--device"], on_gpus["--device"]) == ("cpu", "cuda")
    assert on_gpus.keys() ^ on_cpus.keys() == {"triton's version", "the kernels' level (--cpu-isa)"}


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="/no/such/model: there is no such file or folder on this machine"):
        facts(replace(CONFIG, model_path="/no/such/model"))


def test_a_drafter_may_be_called_by_a_built_in_name() -> None:
    named, path = (
        replace(CONFIG, speculative_draft_model_path=each)
        for each in ("nextn-tiny", str(model_folder("nextn-tiny")))
    )
    assert facts(named)["the draft model"] == facts(path)["the draft model"]


def test_a_placement_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    config = replace(CONFIG, ep_size=2, init_expert_location=str(tmp_path / "one.json"))
    with pytest.raises(ValueError, match=r"one.json: cannot be read on this machine \(No such file"):
        facts(config)
    for name, text in (("one", "[1]"), ("same", "[1]"), ("other", "[2]")):
        (tmp_path / f"{name}.json").write_text(text)
    same, other = (
        replace(config, init_expert_location=str(tmp_path / f"{n}.json")) for n in ("same", "other")
    )
    assert facts(config) == facts(same)
    differing = {key for key, _ in facts(config).items() - facts(other).items()}
    assert differing == {"the placement of experts (--init-expert-location)"}


def test_a_model_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    folder = model_folder(CONFIG.model_path)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert digest(copy) == digest(folder)
    (copy / "tokenizer_config.json").write_text("{}")
    assert digest(copy) == digest(folder), "ranks see no text"
    weights = next(copy.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert digest(copy) != digest(folder)
