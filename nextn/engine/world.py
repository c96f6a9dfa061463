"""Makes a rank's `World` from the options: the world is all ranks that share a model's routed experts."""

from __future__ import annotations

from nextn.config import EngineConfig
from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.expert_world import ExpertWorld
from nextn.distributed.mesh import MeshRanks
from nextn.distributed.mesh_world import MeshWorld
from nextn.distributed.placement_file import Sizes, initial_placement
from nextn.distributed.ranks import Ranks
from nextn.distributed.shared_world import SharedWorld
from nextn.distributed.torch_experts import TorchExpertWorld
from nextn.distributed.torch_group import TorchGroup
from nextn.engine.ep_rank import EPRank
from nextn.engine.gang import most_rows, threads_of
from nextn.families.config import ModelConfig


def shares_experts(config: EngineConfig) -> bool:
    return config.ep_size > 1 or config.groups > 1


def make_world(
    config: EngineConfig, cfg: ModelConfig, ep_rank: EPRank | None, ranks: Ranks | None
) -> ExpertWorld:
    """The world of the native kernels. ep_rank: None if all ranks are those of one group on several machines.
    Raises ValueError for a model without routed experts, and for a placement that does not fit it."""
    if ep_rank is None:
        assert isinstance(ranks, MeshRanks)
        return MeshWorld(_share(config, cfg, ranks.rank), ranks)
    share = _share(config, cfg, ep_rank.group * config.tp_size + ep_rank.rank)
    groups, size, dynamic = config.groups, config.world_size, _dynamic(config)
    if ep_rank.everyone is not None:
        return MeshWorld(share, ep_rank.everyone, dynamic, groups)
    assert ep_rank.memory is not None
    return SharedWorld(share, groups, ep_rank.memory, size * threads_of(config), most_rows(config), dynamic)


def make_torch_world(config: EngineConfig, cfg: ModelConfig, ranks: Ranks) -> TorchExpertWorld:
    """The world of the torch model. ranks: of all groups, connected. Raises the errors of `make_world`."""
    group = ranks.group
    assert isinstance(group, TorchGroup)
    return TorchExpertWorld(group, config.groups, _share(config, cfg, group.rank), _dynamic(config))


def _share(config: EngineConfig, cfg: ModelConfig, rank: int) -> ExpertShare:
    if not cfg.n_routed_experts:
        raise ValueError(
            f"{sharing_option(config)}: {cfg.architecture} here has no routed experts to share; leave it out"
        )
    spare = config.ep_num_redundant_experts
    dense = sum(not cfg.is_moe(i) for i in range(cfg.num_hidden_layers))
    layers = cfg.num_hidden_layers - dense
    nodes, groups = nodes_of_shards(config), cfg.n_group
    physical = cfg.n_routed_experts + spare
    sizes = Sizes(layers, cfg.n_routed_experts, physical, config.ep_size, dense, nodes, groups)
    placement = initial_placement(config.init_expert_location, sizes)
    return ExpertShare(rank, config.world_size, config.ep_size, placement, 1 + spare, dense, nodes, groups)


def nodes_of_shards(config: EngineConfig) -> int:
    """Number of machines, if each has the same number of whole shards: then a plan can keep groups of experts
    on one machine. Otherwise 1."""
    return config.nnodes if config.ep_size % config.nnodes == 0 else 1


def _dynamic(config: EngineConfig) -> bool:
    """Whether an expert's replicas take turns. Always with one group: otherwise all its rows would be sent to
    the same replica."""
    return config.ep_dispatch_algorithm == "dynamic" or config.groups == 1


def sharing_option(config: EngineConfig) -> str:
    """The option by which experts are shared."""
    return "--enable-dp-attention" if config.groups > 1 else f"--ep-size {config.ep_size}"
