"""The runner of llama.cpp: it starts llama-server and sends one HTTP request per prompt. See protocol.py.

If a checkpoint folder has not been converted to GGUF yet, it does that first (convert_gguf.py).
"""

from __future__ import annotations

import atexit
import hashlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from protocol import Generate, Options, Reply, Spec, serve

SLOTS = 32
SLOT_TOKENS = 2304


def start(options: Options) -> tuple[str, Mapping[str, Any], Generate]:
    folder = Path(options.folder)
    server = folder / "build" / "bin" / "llama-server"
    model = Path(options.model)
    gguf = model if model.is_file() else converted(folder, model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(server), "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port),
        "--threads", str(options.threads), "--threads-batch", str(options.threads), "--threads-http", "2",
        "--parallel", str(SLOTS), "--ctx-size", str(SLOTS * SLOT_TOKENS), "--no-webui", "--no-warmup",
    ]  # fmt: skip
    if options.drafts:
        command += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(options.drafts)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    atexit.register(process.terminate)
    wait_until_healthy(process, port)

    def complete(job: tuple[list[int], int]) -> dict[str, Any]:
        prompt, max_tokens = job
        body = {
            "prompt": prompt, "n_predict": max_tokens, "temperature": 0.0, "samplers": ["top_k"], "top_k": 1,
            "ignore_eos": True, "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        status, answer = post(port, "/completion", body)
        if status != 200:
            raise RuntimeError(f"llama-server answered {status}: {answer}")
        return dict(answer)

    pool = ThreadPoolExecutor(SLOTS)

    def generate(prompts: list[list[int]], max_tokens: int) -> Reply:
        begin = time.perf_counter()
        done = list(pool.map(complete, [(prompt, max_tokens) for prompt in prompts]))
        seconds = time.perf_counter() - begin
        proposed = sum(d["timings"].get("draft_n", 0) for d in done)
        accepted = sum(d["timings"].get("draft_n_accepted", 0) for d in done)
        spec = Spec([proposed], [accepted], by_depth=False) if options.drafts else None
        return Reply(seconds, [d["tokens"] for d in done], spec)

    # llama-server reports its version only on stderr. The archive of its sources has the version in its name.
    settings = {"dtype": options.dtype, "threads": options.threads, "drafts": options.drafts}
    return f"llama.cpp of llama-cpp-python {source_version(folder)}", settings, generate


def converted(folder: Path, model: Path) -> Path:
    """The checkpoint as a GGUF file, converted if needed. Each state of the checkpoint's files has its own
    GGUF file."""
    state = hashlib.sha256()
    for file in sorted(model.iterdir()):
        state.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}\n".encode())
    out = folder / "gguf" / f"{model.name}-{state.hexdigest()[:12]}.gguf"
    if not out.exists():
        out.parent.mkdir(exist_ok=True)
        convert = Path(__file__).with_name("convert_gguf.py")
        subprocess.run(
            [sys.executable, str(convert), str(folder / "llama.cpp"), str(model), str(out)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return out


def source_version(folder: Path) -> str:
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    return archive.name.removeprefix("llama_cpp_python-").removesuffix(".tar.gz")


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, seconds: float = 120.0) -> None:
    """Waits until the server is ready. Raises RuntimeError if it ends or is not ready within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with exit code {process.returncode}")
        try:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            link.request("GET", "/health")
            if link.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"llama-server was not ready after {seconds:.0f} s")


def post(port: int, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = link.getresponse()
    return answer.status, json.loads(answer.read())


if __name__ == "__main__":
    serve(start)
