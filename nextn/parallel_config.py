"""The options of ranks and of the experts that ranks share. Options for several groups of ranks are in
`nextn.server_config`."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.option import Options, option

# Only torchrun sets this environment variable. Other programs also set RANK and similar ones.
TORCHRUN = "TORCHELASTIC_RUN_ID"
MAX_RANKS = 64  # maximum ranks of a step: each has a counter in one page (nextn.distributed.shared)


def parsed_address(text: str) -> tuple[str, int]:
    """(host, port) of --dist-init-addr. Raises ValueError.

    >>> parsed_address("10.0.0.1:5000"), parsed_address("tcp://[::1]:5000")
    (('10.0.0.1', 5000), ('::1', 5000))
    """
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"--dist-init-addr is {text!r}: it must be HOST:PORT")
    return host, int(port)


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(Options):
    """The options of `EngineConfig` about ranks."""

    tp_size: int = option(
        1,
        "parallelism",
        "number of ranks: processes that compute every step together, each with a part of the weights. Texts "
        "are the same as with one, byte for byte. On GPUs, each rank has one GPU",
        "--tp",
        "--tensor-parallel-size",
    )
    nnodes: int = option(
        1,
        "parallelism",
        "number of machines with ranks, the same number of ranks on each. Run the same command on every "
        "machine, with its own --node-rank; node 0 answers HTTP",
    )
    node_rank: int = option(0, "parallelism", "number of this machine among the --nnodes machines, from 0 on")
    dist_init_addr: str | None = option(
        None,
        "parallelism",
        "HOST:PORT at which node 0 waits for the ranks of other machines, in a private network: nothing is "
        "encrypted",
        "--nccl-init-addr",
    )
    dist_timeout: float = option(
        300.0,
        "parallelism",
        "seconds that the ranks of several machines wait for each other at the start",
        "--distributed-timeout-seconds",
    )
    numa: str = option(
        "auto",
        "parallelism",
        "auto: on machines with several NUMA nodes, each rank of --tp-size runs on the cores of one node; "
        "off: the system decides",
        choices=("auto", "off"),
    )
    distributed_executor_backend: str = option(
        "mp",
        "parallelism",
        "who starts the ranks. mp: nextn, on the machines where it is started; ray: Ray, on the nodes of a "
        "cluster, needs pip install 'nextn[ray]'",
        choices=("mp", "ray"),
        words={"uni": "mp"},
    )
    ep_size: int = option(
        1,
        "parallelism",
        "number of shards of the routed experts, a divisor of --tp-size. Each shard has whole experts. Texts "
        "do not change",
        "--ep",
        "--expert-parallel-size",
    )
    ep_num_redundant_experts: int = option(
        0,
        "parallelism",
        "number of redundant experts in each layer, over all shards: further copies of experts that get many "
        "tokens",
    )
    ep_dispatch_algorithm: str = option(
        "static",
        "parallelism",
        "which copy of an expert a token is sent to. static: each group of ranks always uses the same copy; "
        "dynamic, or if there is only one group: the copies take turns",
        choices=("static", "dynamic"),
    )
    ep_dispatch_dtype: str = option(
        "bf16",
        "parallelism",
        "type of the rows that routed experts read. bf16: not rounded; fp8: rounded to e4m3 with a scale for "
        "each 128 inputs, also on a single device. Texts differ from those with bf16, and are the same for "
        "any number of devices. Rows that are sent between machines take half the bytes",
        "--deepep-dispatcher-output-dtype",
        choices=("bf16", "fp8"),
        words={"auto": "bf16"},
    )
    init_expert_location: str = option(
        "trivial",
        "parallelism",
        "placement of experts at the start. trivial: in order; or a file with a placement, or with a "
        "recorded distribution of tokens, for which a placement is computed",
    )
    enable_eplb: bool = option(
        False,
        "parallelism",
        "expert parallelism load balancer: while serving, move experts so that all shards get the same "
        "number of tokens. Texts do not change",
    )
    eplb_rebalance_num_iterations: int = option(
        1000, "parallelism", "--enable-eplb: steps between two checks of the balance"
    )
    eplb_rebalance_layers_per_chunk: int | None = option(
        None,
        "parallelism",
        "--enable-eplb: number of layers that move experts between two steps; default: all",
    )
    eplb_min_rebalancing_utilization_threshold: float = option(
        1.0,
        "parallelism",
        "--enable-eplb: experts move only if the shards' mean load, divided by the highest, is below this",
    )
    expert_distribution_recorder_mode: str = option(
        "stat",
        "parallelism",
        "contents of a record of the experts' load. stat: number of tokens of each expert in each layer; "
        "per_pass: the same for every step",
        choices=("stat", "per_pass"),
    )
    enable_two_batch_overlap: bool = option(
        False,
        "parallelism",
        "cut steps into two halves if this is faster, as measured: one half is computed while the rows of "
        "the other half are sent to other shards",
    )

    def check(self) -> None:
        super().check()
        need = self.need
        need(1 <= self.tp_size <= MAX_RANKS, "tp_size", f"it must be between 1 and {MAX_RANKS}")
        need(self.nnodes >= 1, "nnodes", "it must be at least 1")
        need(
            self.world_size % self.nnodes == 0,
            "nnodes",
            f"--tp-size {self.world_size} must be a multiple of it: all machines have equally many ranks",
        )
        need(
            0 <= self.node_rank < self.nnodes,
            "node_rank",
            f"it must be from 0 to {self.nnodes - 1} (--nnodes)",
        )
        need(self.dist_timeout > 0, "dist_timeout", "it must be more than 0")
        if self.distributed_executor_backend == "ray":
            need(
                self.tp_size > 1,
                "distributed_executor_backend",
                "Ray starts the ranks of --tp-size, which is 1; raise it, or leave one of them out",
            )
            need(self.nnodes == 1, "nnodes", "Ray chooses the nodes; leave it out")
            need(self.dist_init_addr is None, "dist_init_addr", "Ray connects the ranks; leave it out")
        if self.dist_init_addr is not None:
            parsed_address(self.dist_init_addr)
        elif self.nnodes > 1:
            raise ValueError(
                f"--nnodes {self.nnodes} needs --dist-init-addr HOST:PORT: where node 0 waits for the others"
            )
        self._check_experts()

    def _check_experts(self) -> None:
        need = self.need
        need(self.ep_size >= 1, "ep_size", "it must be at least 1")
        need(
            self.world_size % self.ep_size == 0,
            "ep_size",
            f"it must divide --tp-size, which is {self.world_size}; change one of them",
        )
        need(
            self.ep_size == 1 or self.distributed_executor_backend == "mp",
            "distributed_executor_backend",
            f"--ep-size {self.ep_size}: Ray has not been tested with shards of experts; leave out "
            "one of them, or use --nnodes in place of Ray",
        )
        need(self.ep_num_redundant_experts >= 0, "ep_num_redundant_experts", "it must be 0 or more")
        for name, default in (
            ("ep_num_redundant_experts", 0),
            ("init_expert_location", "trivial"),
            ("enable_eplb", False),
        ):
            need(
                self.ep_size > 1 or getattr(self, name) == default,
                name,
                "it needs --ep-size above 1; raise --ep-size, or leave this out",
            )
        need(
            self.eplb_rebalance_num_iterations >= 1, "eplb_rebalance_num_iterations", "it must be at least 1"
        )
        chunk = self.eplb_rebalance_layers_per_chunk
        need(chunk is None or chunk >= 1, "eplb_rebalance_layers_per_chunk", "it must be at least 1")
        need(
            0.0 <= self.eplb_min_rebalancing_utilization_threshold <= 1.0,
            "eplb_min_rebalancing_utilization_threshold",
            "it must be between 0 and 1",
        )

    @property
    def world_size(self) -> int:
        """Number of ranks that share the experts. `ep_size` divides it."""
        return self.tp_size

    @property
    def groups(self) -> int:
        """Number of groups of ranks that share the experts. Each group has its own requests."""
        return self.world_size // self.tp_size

    @property
    def one_machine(self) -> bool:
        """Whether all ranks of the engine are on this machine."""
        return self.nnodes == 1 and self.distributed_executor_backend != "ray"

    @property
    def rank_0(self) -> tuple[str, int]:
        """(host, port) at which rank 0 waits for ranks of other machines."""
        assert self.dist_init_addr is not None
        return parsed_address(self.dist_init_addr)

    @property
    def own_ranks(self) -> range:
        """The ranks of this machine, of all groups."""
        each = self.world_size // self.nnodes
        return range(self.node_rank * each, (self.node_rank + 1) * each)
