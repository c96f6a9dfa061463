"""Records how many rows each expert gets: /start_expert_distribution_record, /stop_… and /dump_…

/dump_… writes a file that `nextn eplb` and --init-expert-location read (`nextn.distributed.placement_file`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from operator import add
from pathlib import Path
from typing import BinaryIO

import msgspec

import nextn
from nextn.expert_load import CountTable, ExpertRecord
from nextn.server.answers.service import Service
from nextn.server.process.messages import RecordAction
from nextn.server.protocol.errors import ApiError

log = logging.getLogger("nextn.server")

FOLDER_VARIABLES = ("NEXTN_EXPERT_DISTRIBUTION_RECORDER_DIR", "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR")


class Dumped(msgspec.Struct):
    """The answer to /dump_expert_distribution_record. path: the file, on the server's machine. steps: of all
    engines together, including those left out. total: the sum of the file's target counts; nextn_total: that
    of its NextN counts."""

    path: str
    engines: int
    steps: int
    steps_left_out: int
    total: int
    nextn_total: int


async def record_experts(service: Service, action: RecordAction) -> list[ExpertRecord]:
    """Passes `action` on to the engines. Raises ApiError if none runs, or they do not count experts' rows."""
    service.check_open()
    try:
        return await service.engine.record_experts(action)
    except ValueError as e:
        raise ApiError(400, str(e), code="experts_not_counted") from e


async def dump_experts(service: Service) -> Dumped:
    """Writes the record into a new file. Raises ApiError if nothing was recorded or the file cannot be
    written."""
    folder = recorder_folder()
    path = folder / f"expert_distribution_{time.time():.6f}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            with path.open("xb") as file:  # first: if this fails, the engines keep the record
                undo.callback(path.unlink)
                dumped = await dump_into(file, path, service)
            undo.pop_all()
    except OSError as e:
        message = f"{path} cannot be written: {e.strerror}; set {FOLDER_VARIABLES[0]} to another folder"
        raise ApiError(500, message, "server_error", code="record_not_written") from e
    log.info("expert distribution of %d steps: %s", dumped.steps, path)
    return dumped


def recorder_folder() -> Path:
    named = (os.environ.get(name) for name in FOLDER_VARIABLES)
    return Path(next(filter(None, named), tempfile.gettempdir())).absolute()


async def dump_into(file: BinaryIO, path: Path, service: Service) -> Dumped:
    records = await record_experts(service, "dump")
    if not records:
        message = "nothing was recorded: POST /start_expert_distribution_record, then send requests"
        raise ApiError(400, message, code="nothing_recorded")
    return await asyncio.to_thread(write, file, path, records, service.config.model_path)


def write(file: BinaryIO, path: Path, records: Sequence[ExpertRecord], model: str) -> Dumped:
    """Writes the records as JSON, in a thread. It encodes one table at a time, because encoding thousands at
    once would hold up the server."""
    of_nextn = [record.nextn for record in records if record.nextn is not None]
    file.write(b'{"logical_count": ')
    total = write_tables(file, [record.target for record in records])
    nextn_total = 0
    if of_nextn:
        file.write(b',\n"nextn_logical_count": ')
        nextn_total = write_tables(file, of_nextn)
    steps, left_out = [record.steps for record in records], [record.left_out for record in records]
    about = {
        "nextn_version": nextn.__version__,
        "nextn_model": model,
        "nextn_steps": steps,  # one for each engine
        "nextn_steps_left_out": left_out,
    }
    file.write(b",\n" + msgspec.json.encode(about)[1:] + b"\n")
    return Dumped(str(path), len(records), sum(steps), sum(left_out), total, nextn_total)


def write_tables(file: BinaryIO, tables: Sequence[CountTable]) -> int:
    """Writes the sum of several engines' tables. Tables with a step axis are written one engine after the
    other instead. Returns the sum of all counts."""
    *steps, layers, experts = tables[0].shape
    if not steps:
        whole = array("q", bytes(8 * layers * experts))
        for one in tables:
            whole = array("q", map(add, whole, array("q", one.data)))
        file.write(encoded(whole, experts))
        return sum(whole)
    total = 0
    for number, table in enumerate(by_step(tables)):
        file.write(b",\n" if number else b"[")
        file.write(encoded(table, experts))
        total += sum(table)
    file.write(b"]")
    return total


def by_step(tables: Sequence[CountTable]) -> Iterator[array[int]]:
    for one in tables:
        steps, layers, experts = one.shape
        size = 4 * layers * experts
        for at in range(0, steps * size, size):
            yield array("i", one.data[at : at + size])


def encoded(counts: array[int], experts: int) -> bytes:
    return msgspec.json.encode([counts[at : at + experts].tolist() for at in range(0, len(counts), experts)])
