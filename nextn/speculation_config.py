"""The options of speculation: the drafter, the depth and shape of drafts, and how they are verified."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from nextn.draft import (
    AUTO_STEPS,
    MAX_AUTO_STEPS,
    MAX_AUTO_TREE_STEPS,
    MAX_DRAFTS,
    MAX_TOPK,
    Shape,
    tree_size,
)
from nextn.option import Options, option
from nextn.params_check import VERIFY_MODES
from nextn.request import SpeculativeParams
from nextn.speculation import Speculation


@dataclass(frozen=True, kw_only=True)
class SpeculationConfig(Options):
    """The options of `EngineConfig` about drafts."""

    speculative_algorithm: str | None = option(
        None,
        "speculation",
        "drafter: NEXTN or EAGLE (the same): the MTP layer; NGRAM: repetitions in the request's own text; "
        "NEXTN+NGRAM: for each request, the one whose drafts are accepted more often; NONE: no drafts; "
        "default: NEXTN if the model has an MTP layer",
        "--speculative-algo",
        "--spec-method",
        choices=("NEXTN", "EAGLE", "NGRAM", "NEXTN+NGRAM", "NONE"),
        words={"mtp": "NEXTN", "deepseek_mtp": "NEXTN"},
    )
    speculative_draft_model_path: str | None = option(
        None,
        "speculation",
        "folder with the MTP layer, if it is not in --model-path: an export by nextn export-mtp, SGLang or "
        "xLLM, or a whole checkpoint or GGUF file; not read if speculation is off",
        "--speculative-draft-model",
        "--draft_model",
        "--spec-model",
    )
    step_cost_cache: str | None = option(
        None,
        "speculation",
        "folder where automatic depth keeps measured step costs for the next start; off: measure at every "
        "start; default: nextn/step-costs in $XDG_CACHE_HOME or ~/.cache",
    )
    speculative_num_steps: int | None = option(
        None,
        "speculation",
        "draft depth: drafts per step; 0: off; auto (default): as many as pay at the current load, at most 8 "
        "in a chain and 4 levels in a tree. auto is 2 for a chain with --speculative-num-draft-tokens, and "
        "with a simulated accept length",
        "--num_speculative_tokens",
        "--num-speculative-tokens",
        "--spec-tokens",
        words={"auto": AUTO_STEPS},
        values=f"auto, or a whole number from 0 (off) to {MAX_DRAFTS}",
    )
    speculative_eagle_topk: int = option(
        1, "speculation", "branches of a draft at each depth; 1: a chain; more than 1: a tree"
    )
    speculative_draft_model_quantization: str | None = option(
        None,
        "speculation",
        "weights of the drafter: w8a16: in int8 (native kernels only); unquant: as in the checkpoint; "
        "default: w8a16 if they are too large for a CPU cache. Texts are the same with either",
        choices=("w8a16", "unquant"),
    )
    speculative_token_map: str | None = option(
        None,
        "speculation",
        "file with the list of token ids that may be drafted (.pt, .npy or .json, as in FR-Spec); the "
        "drafter's head computes only these. Texts stay the same. Default: token_map.json in the folder of "
        "--speculative-draft-model-path, if there is one",
    )
    speculative_simulate_accept_length: float | None = option(
        None,
        "speculation",
        "for benchmarks on dummy weights: accept drafts at random, so that a step commits this many tokens "
        "on average. The texts are then NOT the model's",
    )
    speculative_num_draft_tokens: int | None = option(
        None,
        "speculation",
        "nodes verified per step, root included. A tree keeps its most likely nodes (default: topk * "
        "num-steps + 1); a chain always has num-steps + 1",
    )

    speculative_verify: str = option(
        "exact",
        "speculation",
        "how drafts are verified. exact: the text is the same as without drafts, byte for byte; rejection, "
        "block: only its distribution is the same (chains only); typical: accepts drafts that the model "
        "finds likely enough, LOSSY if a threshold is below 1. A request may ask for another mode",
        choices=VERIFY_MODES,
    )
    speculative_accept_threshold_single: float = option(
        1.0, "speculation", "typical: a draft of at least this probability is always accepted; LOSSY below 1"
    )
    speculative_accept_threshold_acc: float = option(
        1.0,
        "speculation",
        "typical: a draft is accepted if a random number is at most p divided by this value, where p is the "
        "total probability of the draft and of those tried before it; LOSSY below 1",
    )

    def check_speculation(self) -> None:
        """Checks these options; part of `check`."""
        need = self.need
        need(
            self.speculative_num_steps in (None, AUTO_STEPS) or 0 <= self.speculative_num_steps <= MAX_DRAFTS,
            "speculative_num_steps",
            f"it must be auto, or a whole number from 0 (off) to {MAX_DRAFTS}",
        )
        resolved, simulated = self.speculation, self.speculative_simulate_accept_length
        topk, steps, nodes = resolved.shape.topk, resolved.num_steps, self.speculative_num_draft_tokens
        need(
            simulated is None or 1 <= simulated <= steps + 1,
            "speculative_simulate_accept_length",
            f"it must be between 1 and --speculative-num-steps + 1 = {steps + 1}",
        )
        need(1 <= topk <= MAX_TOPK, "speculative_eagle_topk", f"it must be between 1 and {MAX_TOPK}")
        if nodes is not None and steps:
            most = tree_size(topk, steps) + 1
            need(
                topk > 1 or nodes == most,
                "speculative_num_draft_tokens",
                f"a chain verifies --speculative-num-steps + 1 = {most} tokens; leave it out",
            )
            need(
                steps < nodes <= most,
                "speculative_num_draft_tokens",
                f"a tree of --speculative-eagle-topk {topk} and --speculative-num-steps {steps} has at "
                f"most {most} nodes, its root counted, and needs {steps + 1} to be that deep",
            )
        if resolved.ngrams:
            algorithm = f"--speculative-algorithm {self.speculative_algorithm}"
            need(topk == 1, "speculative_eagle_topk", f"{algorithm} drafts chains; leave it out")
            for name in () if resolved.mtp else ("draft_model_path", "draft_model_quantization", "token_map"):
                need(
                    getattr(self, f"speculative_{name}") is None,
                    f"speculative_{name}",
                    f"{algorithm} drafts without a model; leave one of them out",
                )
        for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
            need(0.0 <= getattr(self, name) <= 1.0, name, "it must be between 0 and 1")
        asked = dataclasses.replace(resolved.defaults, num_steps=self.speculative_num_steps)
        resolved.check(asked, lambda field: f"--speculative-{field.replace('_', '-')}")

    @cached_property
    def speculation(self) -> Speculation:
        """The settings that the options ask for. A model without an MTP layer may be unable to fulfil them;
        see `Speculation.on`."""
        asked, topk = self.speculative_num_steps, self.speculative_eagle_topk
        nodes, simulated = self.speculative_num_draft_tokens, self.speculative_simulate_accept_length
        algorithm = self.speculative_algorithm or "NEXTN"
        auto = False
        if algorithm == "NONE":
            num_steps = 0
        elif asked not in (None, AUTO_STEPS):
            num_steps = asked
        else:
            # Not if drafts are accepted at random, nor for chains with a given number of tokens.
            auto = simulated is None and (topk > 1 or nodes is None)
            num_steps = (MAX_AUTO_STEPS if topk == 1 else MAX_AUTO_TREE_STEPS) if auto else 2
        return Speculation(
            "NEXTN" if algorithm == "EAGLE" else algorithm,
            num_steps,
            auto,
            Shape(topk, (nodes or topk * num_steps + 1) - 1),
            SpeculativeParams(
                verify=self.speculative_verify,
                accept_threshold_single=self.speculative_accept_threshold_single,
                accept_threshold_acc=self.speculative_accept_threshold_acc,
            ),
            simulated,
        )
