"""Dockerfile and examples/deploy: the options, paths and files they name are there."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextn.cli import Parser
from nextn.cli.options import add_options, parse
from nextn.server.http.auth import OPEN
from nextn.server_config import API_KEY_VARIABLE, ServerConfig

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
FOLDER = ROOT / "examples" / "deploy"
UNIT = (FOLDER / "nextn.service").read_text()
DEPLOYMENT = next(yaml.safe_load_all((FOLDER / "kubernetes.yml").read_text()))
GROUP = {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "nextn-0.nextn.default"}  # as LeaderWorkerSet sets them


def config_of(words: Sequence[str]) -> ServerConfig:
    parser = Parser(prog="nextn serve")
    add_options(parser, ServerConfig)
    return parse(parser.parse_args(list(words)), ServerConfig)


def container_options() -> list[str]:
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M)
    words: list[str] = json.loads(entry)
    assert words[:2] == ["nextn", "serve"]
    return words[2:]


def test_dockerfile() -> None:
    assert config_of(container_options()).port == int(re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.M)[0])
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M) for name in line.split()[:-1]
    ]
    assert sorted(copied) == sorted(let_in)
    assert all((ROOT / name).exists() for name in copied)
    assert re.search(r"\.\[(\w+)\]", DOCKERFILE)[1] in (ROOT / "pyproject.toml").read_text()  # type: ignore[index]


def test_systemd_unit() -> None:
    (command,) = re.findall(r"^ExecStart=\S+/nextn serve (.*)$", UNIT, re.M)
    config = config_of(shlex.split(command))
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)
    assert int(stop) > config.shutdown_timeout
    assert API_KEY_VARIABLE in UNIT


def test_kubernetes() -> None:
    pod = DEPLOYMENT["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_pod(pod, config_of([*container_options(), *container["args"]]))


def check_pod(pod: dict[str, Any], config: ServerConfig) -> None:
    """Of a server: its times and probes fit its options."""
    (container,) = pod["containers"]
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > config.shutdown_timeout + sleep
    assert container["env"][0]["name"] == API_KEY_VARIABLE
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = container[probe]["httpGet"]
        assert request["port"] == config.port
        assert request["path"] in OPEN


def test_leader_worker_set() -> None:
    """Both kinds of pod run the same command, with what LeaderWorkerSet sets for each."""
    workload, service, policy = yaml.safe_load_all((FOLDER / "leaderworkerset.yml").read_text())
    group = workload["spec"]["leaderWorkerTemplate"]
    assert (
        "startupPolicy" not in workload["spec"]
    )  # its default lets workers start before the leader is ready
    configs = []
    for rank, kind in enumerate(("leaderTemplate", "workerTemplate")):
        (container,) = group[kind]["spec"]["containers"]
        words = container["args"]
        for name, value in {**GROUP, "LWS_WORKER_INDEX": str(rank)}.items():
            words = [word.replace(f"$({name})", value) for word in words]
        configs.append(config_of([*container_options(), *words]))
        assert container["resources"]["requests"]["cpu"] == configs[-1].threads * len(configs[-1].own_ranks)
    leader, worker = configs
    assert dataclasses.replace(leader, node_rank=1) == worker
    assert leader.nnodes == group["size"] == int(GROUP["LWS_GROUP_SIZE"])
    check_pod(group["leaderTemplate"]["spec"], leader)
    labels = {"leaderworkerset.sigs.k8s.io/name": workload["metadata"]["name"]}
    assert service["spec"]["selector"] == labels | group["leaderTemplate"]["metadata"]["labels"]
    assert service["spec"]["ports"] == policy["spec"]["ingress"][1]["ports"] == [{"port": leader.port}]
    assert policy["spec"]["podSelector"] == {"matchLabels": labels}
    assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": {"matchLabels": labels}}]


def test_prefill_and_decode() -> None:
    """The router finds each kind of pod by its labels, and the bootstrap port by its annotation."""
    prefill, decode, router, service, *_ = yaml.safe_load_all((FOLDER / "disaggregation.yml").read_text())
    configs = {}
    for mode, workload in (("prefill", prefill), ("decode", decode)):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        configs[mode] = config = config_of([*container_options(), *container["args"]])
        assert config.disaggregation_mode == mode
        assert container["readinessProbe"]["httpGet"]["path"] in OPEN
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert labels == workload["spec"]["selector"]["matchLabels"] == {"app": "nextn", "role": mode}
    annotations = prefill["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"sglang.ai/bootstrap-port": str(configs["prefill"].disaggregation_bootstrap_port)}
    (container,) = router["spec"]["template"]["spec"]["containers"]
    for mode, config in configs.items():
        assert f"--{mode}-selector app=nextn role={mode}" in container["args"][0]
        assert f"--service-discovery-port {config.port} " in container["args"][0]
    assert service["spec"]["selector"] == router["spec"]["template"]["metadata"]["labels"]


def test_ray_cluster() -> None:
    """Its fields are those of Ray's schema for clusters of machines that are there already."""
    text = (FOLDER / "ray-cluster.yml").read_text()
    cluster = yaml.safe_load(text)
    assert cluster.keys() == {
        "cluster_name", "provider", "auth", "head_start_ray_commands", "worker_start_ray_commands",
    }  # fmt: skip
    assert cluster["provider"].keys() == {"type", "head_ip", "worker_ips"}
    (line,) = re.findall(
        r"^#   ray exec --tmux ray-cluster.yml '/opt/nextn/bin/nextn serve (.*)'$", text, re.M
    )
    config = config_of(shlex.split(line))
    assert config.distributed_executor_backend == "ray"
    assert config.tp_size == 1 + len(cluster["provider"]["worker_ips"])
    for commands in (cluster["head_start_ray_commands"], cluster["worker_start_ray_commands"]):
        assert [re.findall(r"/opt/nextn/bin/ray (\w+)", command) for command in commands] == [
            ["stop"],
            ["start"],
        ]


def test_torchrun() -> None:
    (line,) = re.findall(r"^\$ torchrun .* -m nextn serve (.*)$", (FOLDER / "README.md").read_text(), re.M)
    config_of(shlex.split(line))


def test_ray_serve() -> None:
    """The options in its docstring and in docs/ray.md."""
    for path in (FOLDER / "ray_serve.py", ROOT / "docs" / "ray.md"):
        (line,) = re.findall(r"serve run ray_serve:app (.*)$", path.read_text(), re.M)
        given = dict(word.split("=", 1) for word in shlex.split(line))
        assert given.keys() == {"replicas", "cpus", "options"}
        config_of([f"--threads={given['cpus']}", *shlex.split(given["options"])])


def test_every_file_has_a_line_in_the_readme() -> None:
    listed = re.findall(r"^\| \[(.*?)\]", (FOLDER / "README.md").read_text(), re.M)
    assert sorted([*listed, "README.md"]) == sorted(path.name for path in FOLDER.iterdir() if path.is_file())


@pytest.mark.parametrize("path", ["docs/operations.md"])
def test_operations_page_names_real_options(path: str) -> None:
    text = (ROOT / path).read_text()
    named = set(re.findall(r"`(--[\w-]+)", text))
    known = (ROOT / "docs" / "options.md").read_text()
    assert sorted(name for name in named if f"`{name}`" not in known) == []
