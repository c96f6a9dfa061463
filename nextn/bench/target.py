"""The server of a load: its URL, the name of its model, and the model's tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nextn.bench.client import get
from nextn.bench.errors import BenchError
from nextn.config import model_folder
from nextn.tokenizer import Tokenizer


@dataclass(frozen=True)
class Target:
    url: str
    model: str | None  # its name in requests; None: the server does not report one
    tokenizer: Tokenizer | None
    api_key: str | None


async def find_target(url: str, model: str | None, tokenizer: str | None, api_key: str | None) -> Target:
    """Finds model and tokenizer. If `model` or `tokenizer` is None, takes what the server reports. The result
    has no tokenizer if the server's is not on this machine.

    Raises ValueError if `tokenizer` cannot be read.
    """
    if model is None:
        model = await first_model(url, api_key)
    if tokenizer is not None:
        return Target(url, model, Tokenizer.from_folder(model_folder(tokenizer)), api_key)
    folder = await local_folder(url, model, api_key)
    return Target(url, model, None if folder is None else Tokenizer.from_folder(folder), api_key)


async def first_model(url: str, api_key: str | None) -> str | None:
    try:
        name: str = (await get(url, "/v1/models", api_key))["data"][0]["id"]
        return name
    except (BenchError, KeyError, IndexError, TypeError):
        return None


async def local_folder(url: str, model: str | None, api_key: str | None) -> Path | None:
    try:
        info = await get(url, "/server_info", api_key)
    except BenchError:
        info = {}
    info = info if isinstance(info, dict) else {}
    for name in (info.get("tokenizer_path"), info.get("model_path"), model):
        if isinstance(name, str) and (folder := model_folder(name)).joinpath("tokenizer.json").is_file():
            return folder
    return None
