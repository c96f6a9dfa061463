"""Control over speculation and what is reported of it: per request and live, on real servers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from support.server_process import ServerProcess, until

StartServer = Callable[..., ServerProcess]
OFF: dict[str, Any] = {"speculative": False}


def complete(server: ServerProcess, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The text and what speculation did for it."""
    body = {"prompt": "def f():", "max_tokens": 60, "temperature": 0, "return_spec_tokens_details": True}
    response = httpx.post(server.url + "/v1/completions", json=body | fields, timeout=60)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["text"], answer["usage"]["spec_details"]


def set_state(server: ServerProcess, **args: Any) -> httpx.Response:
    return httpx.post(server.url + "/set_internal_state", json={"server_args": args}, timeout=30)


def in_force(server: ServerProcess) -> dict[str, Any]:
    (state,) = httpx.get(server.url + "/server_info").json()["internal_states"]
    return {name: value for name, value in state.items() if name.startswith("speculative_")}


def test_per_request_through_the_openai_client(scripted: ServerProcess) -> None:
    with openai.OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0) as client:
        for extra, histogram in [({}, [0, 0, 10]), (OFF, [30]), ({"speculative": {"num_steps": 1}}, [0, 15])]:
            answer = client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "hi"}], max_tokens=30, temperature=0,
                extra_body={"return_spec_tokens_details": True, **extra},
            )  # fmt: skip
            assert answer.usage is not None
            assert answer.usage.model_extra is not None
            assert answer.usage.model_extra["spec_details"]["histogram"] == histogram
            assert answer.model_extra is not None
            details = answer.model_extra["sglext"]["spec_tokens_details"]
            assert details["spec_correct_drafts_histogram"] == histogram
            assert details["spec_accept_length"] == len(histogram)
        with pytest.raises(openai.BadRequestError, match=r"speculative\.num_steps is 99") as error:
            client.completions.create(
                model="scripted", prompt="x", extra_body={"speculative": {"num_steps": 99}}
            )
        assert error.value.param == "speculative.num_steps"


def test_live_defaults(start: StartServer) -> None:
    server = start().wait_ready()
    assert set_state(server, speculative_num_steps=1).json() == [True]
    assert in_force(server)["speculative_num_steps"] == 1
    assert complete(server)[1]["histogram"] == [0, 30]
    assert complete(server, **OFF)[1]["histogram"] == [60]
    # The scripted engine refuses one; nothing is changed then.
    refused = set_state(server, speculative_verify="block", speculative_num_steps=0)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "server_args.speculative_verify is 'block'; not here"
    assert refused.json()["error"]["param"] == "server_args.speculative_verify"
    assert complete(server)[1]["histogram"] == [0, 30]
    # They outlive the engine process.
    os.kill(server.engine_pid(), signal.SIGKILL)
    until(lambda: httpx.get(server.url + "/health").status_code == 503)
    until(lambda: httpx.get(server.url + "/health").status_code == 200)
    assert complete(server)[1]["histogram"] == [0, 30]
    assert set_state(server, speculative_num_steps=None).json() == [True]
    assert complete(server)[1]["histogram"] == [0, 0, 20]


def test_requests_of_all_depths_at_once(fake: ServerProcess) -> None:
    """The same texts, each drafted as deep as it asked for."""
    by_steps: dict[int, Any] = {
        0: False,
        1: {"num_steps": 1},
        2: None,
        5: {"num_steps": 5, "verify": "exact"},
    }
    each_steps = [0, 1, 2, 5] * 4
    jobs = [
        {"prompt": f"# {i}", "ignore_eos": True, "speculative": by_steps[num_steps]}
        for i, num_steps in enumerate(each_steps)
    ]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda job: complete(fake, **job), jobs))
    for job, num_steps, (text, spec) in zip(jobs, each_steps, together, strict=True):
        assert text == complete(fake, **(job | OFF))[0]
        assert len(spec["proposed"]) == num_steps
        assert sum(spec["histogram"]) == spec["verify_steps"]
        assert sum(i * n for i, n in enumerate(spec["histogram"])) == sum(spec["accepted"])


def test_a_real_engine_refuses_what_it_cannot_do(fake: ServerProcess) -> None:
    body = {"prompt": "x", "speculative": {"verify": "block", "accept_threshold_acc": 0.5}}
    response = httpx.post(fake.url + "/v1/completions", json=body)
    assert response.status_code == 400
    message = "speculative.accept_threshold_acc is 0.5: it applies to verify 'typical' only"
    assert response.json()["error"]["message"].startswith(message)
    for mode in ("rejection", "block", "typical"):
        text, _ = complete(fake, seed=3, temperature=4.0, speculative={"verify": mode})
        assert text == complete(fake, seed=3, temperature=4.0, speculative={"verify": mode})[0]
    response = set_state(fake, speculative_accept_threshold_single=0.5)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "server_args.speculative_accept_threshold_single"


def test_live_defaults_of_a_real_engine(fake: ServerProcess) -> None:
    text, spec = complete(fake)
    assert len(spec["proposed"]) == 2
    set_state(fake, speculative_num_steps=4)
    again, spec = complete(fake)
    assert (again, len(spec["proposed"])) == (text, 4)
    set_state(fake, speculative_num_steps=None)
    assert in_force(fake) == {
        "speculative_num_steps": 2, "speculative_verify": "exact",
        "speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0,
    }  # fmt: skip


def test_streamed_through_the_openai_client(scripted: ServerProcess) -> None:
    with openai.OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0) as client:
        *_, last = client.completions.create(
            model="scripted", prompt="x", max_tokens=30, stream=True, stream_options={"include_usage": True},
            extra_body={"return_spec_tokens_details": True, "speculative": {"num_steps": 1}},
        )  # fmt: skip
    assert last.usage is not None
    assert last.usage.model_extra is not None
    assert last.usage.model_extra["spec_details"]["histogram"] == [0, 15]
    assert last.model_extra is not None
    assert last.model_extra["sglext"]["spec_tokens_details"]["spec_verify_ct"] == 15


def test_debug_log(start: StartServer) -> None:
    server = start("--log-level", "debug").wait_ready()
    complete(server, stop="return")

    def lines() -> list[str]:
        return [line for line in server.stderr if "Finished request" in line]

    until(lambda: lines())
    (line,) = lines()
    assert "finish reason: stop" in line
    assert line.endswith("accept len: 3.00, accepted per step: [0, 0, 9]")
