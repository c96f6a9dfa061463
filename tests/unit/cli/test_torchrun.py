"""Ranks that torchrun starts. (A server under it: tests/e2e/test_nodes.py.)"""

from __future__ import annotations

import pytest

from nextn.cli.torchrun import under_torchrun
from nextn.parallel_config import TORCHRUN
from nextn.server_config import ServerConfig

TWO = {TORCHRUN: "none", "WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "5"}


def test_who_is_not_started_by_it_is_left_alone() -> None:
    config = ServerConfig()
    for environment in ({}, {"WORLD_SIZE": "2", "RANK": "1"}, {TORCHRUN: "none", "WORLD_SIZE": "1"}):
        assert under_torchrun(config, environment) is config


@pytest.mark.parametrize("size", [1, 2])
def test_each_process_is_a_node_of_one_rank(size: int) -> None:
    made = under_torchrun(ServerConfig(tp_size=size, dist_init_addr="a:7"), TWO)
    assert (made.tp_size, made.nnodes, made.node_rank, made.dist_init_addr) == (2, 2, 1, "a:7")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (ServerConfig(tp_size=4), "--tp-size 4: torchrun has started 2 ranks; leave it out"),
        (ServerConfig(tp_size=2, nnodes=2, dist_init_addr="a:7"), "--nnodes 2: torchrun has started 2 ranks"),
        (ServerConfig(dp_size=2, dist_init_addr="a:7"), "--dp-size 2 with --nnodes 2"),
    ],
)
def test_options_that_say_something_else(config: ServerConfig, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        under_torchrun(config, TWO)
