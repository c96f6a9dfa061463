"""Requests with the same prompt that arrived together: one of them computes the prompt, the others reuse it.

    first:    | prompt, computed and scored ........ | its output
    another:    waits ..................... | cached | the last tokens | its output

The pages come from the prefix cache. Without a prefix cache, only log-probabilities are shared. Requests that
want nothing else end together.
"""

from __future__ import annotations

from nextn.kvcache.manager import KVManager
from nextn.request import Request


def enter(req: Request) -> None:
    group = req.group
    if group is None:
        return
    if group.members:
        first = group.members[0]
        assert first.tokens[: first.num_prompt] == req.tokens, "a group has one prompt"
        assert first.params.prompt_logprobs == req.params.prompt_logprobs
    req.prompt_logprobs = group.prompt_logprobs
    group.members.append(req)


def leave(req: Request) -> None:
    if req.group is not None:
        req.group.members.remove(req)


def waits(req: Request, kv: KVManager) -> bool:
    """Whether another request of the group runs and computes pages that this one can reuse later."""
    if req.group is None:
        return False
    shareable = kv.shareable(req.num_prompt)
    wants_scores = req.params.prompt_logprobs is not None and len(req.prompt_logprobs) < req.num_prompt - 1
    gains = wants_scores or only_reads(req)
    return any(m.lock is not None and not m.decoding and (gains or m.cached < shareable)
               for m in req.group.members)  # fmt: skip


def ends_with(req: Request) -> list[Request]:
    """The other requests of the group that wait and that, like this one, end when the prompt is computed."""
    if req.group is None or not only_reads(req):
        return []
    return [m for m in req.group.members if m.lock is None and only_reads(m)]


def only_reads(req: Request) -> bool:
    """Whether it ends when its prompt has been computed."""
    return req.limit == req.num_prompt
