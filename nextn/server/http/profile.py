"""/start_profile and /stop_profile, as in SGLang: write a trace of where the time goes, for Perfetto."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
from fastapi import FastAPI, Request, Response
from pydantic import BeforeValidator, Field, WithJsonSchema

from nextn.server.answers.service import Service
from nextn.server.http.bodies import Bodies
from nextn.server.http.openapi import Document
from nextn.server.monitoring.profiler import Profile, Profiler, Written
from nextn.server.protocol.body import Body
from nextn.server.protocol.errors import ApiError, bad_request

FOLDER_VARIABLES = ("NEXTN_PROFILE_DIR", "SGLANG_TORCH_PROFILER_DIR", "VLLM_TORCH_PROFILER_DIR")
PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
ACTIVITIES = ("CPU", "GPU")  # accepted without effect: the trace always shows the host's work over time


def number(value: object) -> object:
    """The number in a string of digits, since SGLang's own client sends numbers as text. Other values are
    returned unchanged."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value


def counts_from(least: int, pattern: str) -> object:
    return WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": least}, {"type": "string", "pattern": pattern}]}
    )


class ProfileRequest(Body):
    """All fields are optional. `merge_profiles` has no effect, because there is only one file."""

    refused: ClassVar = {
        "profile_by_stage": (False,),
        "profile_stages": ([],),
        "with_stack": (False,),
        "record_shapes": (False,),
    }
    output_dir: str | None = None
    num_steps: Annotated[
        int | None, BeforeValidator(number), Field(ge=1), counts_from(1, "^[1-9][0-9]{0,8}$")
    ] = None
    start_step: Annotated[
        int | None, BeforeValidator(number), Field(ge=0), counts_from(0, "^[0-9]{1,9}$")
    ] = None
    activities: list[str] | None = None
    merge_profiles: bool = False
    profile_prefix: str | None = None

    def check(self) -> None:
        for activity in self.activities or ():
            if activity not in ACTIVITIES:
                known = ", ".join(ACTIVITIES)
                raise bad_request(
                    f"activities: {activity!r} is not supported; choose from {known}", "activities"
                )
        if self.output_dir is not None and ("\0" in self.output_dir or not os.path.isabs(self.output_dir)):
            message = (
                f"output_dir is {self.output_dir!r}; it must be an absolute path on the server's machine"
            )
            raise bad_request(message, "output_dir")
        if self.profile_prefix is not None and not PREFIX.fullmatch(self.profile_prefix):
            message = "profile_prefix: use up to 100 letters, digits, ., - and _, and do not begin with a dot"
            raise bad_request(message, "profile_prefix")


def default_folder(service: Service) -> Path:
    named = (service.config.profile_dir, *(os.environ.get(name) for name in FOLDER_VARIABLES))
    return Path(next(filter(None, named), tempfile.gettempdir())).absolute()


def start_profile(service: Service, profiler: Profiler, asked: ProfileRequest) -> None:
    """Starts a profile. Raises ApiError if no engine runs, if a profile runs already, or if no file can be
    written in the folder."""
    service.check_open()
    folder = default_folder(service) if asked.output_dir is None else Path(asked.output_dir)
    try:
        profiler.start(Profile(folder, asked.profile_prefix, asked.num_steps, asked.start_step))
    except ValueError as e:
        raise ApiError(400, str(e), code="profile_running") from e
    except OSError as e:
        message = f"no file can be written in {folder}: {e.strerror}; set output_dir to another folder"
        raise ApiError(400, message, param="output_dir", code="profile_dir_not_usable") from e


async def stop_profile(profiler: Profiler) -> Written:
    """Ends the profile. Raises ApiError if none was started, or its trace cannot be written."""
    try:
        return await profiler.stop()
    except ValueError as e:
        raise ApiError(400, str(e), code="profile_not_started") from e
    except OSError as e:
        message = f"the trace cannot be written: {e.strerror}; it is kept, and /stop_profile tries again"
        raise ApiError(500, message, "server_error", code="profile_not_written") from e


def add_profile(
    app: FastAPI, service: Service, bodies: Bodies, document: Document, profiler: Profiler
) -> None:
    summary = "Start a profile"
    end = document.route("Stop the profile and write its trace to a file", answer=Written)

    @app.get("/start_profile", **document.route(summary, text=True))
    @app.post("/start_profile", **document.route(summary, ProfileRequest, text=True, optional=True))
    async def start(request: Request) -> Response:
        start_profile(service, profiler, await bodies.read(request, ProfileRequest, empty=True))
        return Response("Start profiling.\n", media_type="text/plain")

    @app.get("/stop_profile", **end)
    @app.post("/stop_profile", **end)
    async def stop() -> Response:
        written = await stop_profile(profiler)
        return Response(msgspec.json.encode(written), media_type="application/json")
