"""Dockerfile, systemd unit, Kubernetes: the options, paths and files they name are there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from nextn.cli import Parser
from nextn.cli.options import add_options, parse
from nextn.server.http.auth import OPEN
from nextn.server_config import API_KEY_VARIABLE, ServerConfig

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNIT = (ROOT / "examples" / "deploy" / "nextn.service").read_text()
DEPLOYMENT = next(yaml.safe_load_all((ROOT / "examples" / "deploy" / "kubernetes.yml").read_text()))


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
    config = config_of([*container_options(), *container["args"]])
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > config.shutdown_timeout + sleep
    assert container["env"][0]["name"] == API_KEY_VARIABLE
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = container[probe]["httpGet"]
        assert request["port"] == config.port
        assert request["path"] in OPEN


@pytest.mark.parametrize("path", ["docs/operations.md"])
def test_operations_page_names_real_options(path: str) -> None:
    text = (ROOT / path).read_text()
    named = set(re.findall(r"`(--[\w-]+)", text))
    known = (ROOT / "docs" / "options.md").read_text()
    assert sorted(name for name in named if f"`{name}`" not in known) == []
