"""Records the example that the page at / shows before anything is typed: python tests/page_example.py

It writes nextn/server/http/page/example.json: one prompt with 3 drafts and without, as the embedded model
answers. Of several runs of each the fastest is kept: what else a machine does only slows it.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
from support.server_process import ServerProcess

import nextn
from nextn.bench.machine import this_machine
from nextn.server.http.static import FOLDER

NUM_STEPS, MAX_TOKENS, RUNS = 3, 128, 60
PROMPT = (
    "import os\nimport sys\n\n\ndef find_files(root, suffix):\n"
    '    """Yield the paths of files below root that end in suffix."""\n    for'
)  # the page's first preset
BODY = {
    "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "return_draft_depths": True,
    "return_draft_steps": True, "return_spec_tokens_details": True,
}  # fmt: skip


def complete(url: str, speculative: object) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/completions", json={**BODY, "speculative": speculative}, timeout=60)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def seconds(answer: dict[str, Any]) -> float:
    steps = answer["choices"][0]["draft_steps"]
    taken: float = steps[-1]["seconds"] - steps[0]["seconds"]
    return taken


def small(answer: dict[str, Any]) -> dict[str, Any]:
    """What the page reads of it."""
    kept = {name: answer["choices"][0][name] for name in ("text", "draft_depths", "draft_steps")}
    details = answer["usage"]["spec_details"]
    return {"choices": [kept], "usage": {"spec_details": {"accept_length": details["accept_length"]}}}


def main() -> None:
    both: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    with ServerProcess(["-m", "nextn", "serve", "--port", "0"]) as server:
        for _ in range(RUNS):  # in turn, so that a machine that slows down slows both
            for answers, speculative in zip(both, ({"num_steps": NUM_STEPS}, False), strict=True):
                answers.append(complete(server.url, speculative))
    machine = this_machine()
    example = {
        "recorded": f"nextn-tiny, nextn {nextn.__version__}, {machine.cpu}, {machine.cores} cores, "
        f"the fastest of {RUNS} runs each",
        "num_steps": NUM_STEPS,
        "prompt": PROMPT,
        "answers": [small(min(answers, key=seconds)) for answers in both],
    }
    path = FOLDER / "example.json"
    path.write_text(json.dumps(example, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(path, path.stat().st_size, [seconds(answer) for answer in example["answers"]])  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
