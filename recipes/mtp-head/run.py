"""Trains a NextN (MTP) layer for a model that has none, or a better one, and writes it as a draft folder.

python recipes/mtp-head/run.py --model-path MODEL --output FOLDER          # two hours on a CPU
nextn serve --model-path MODEL --speculative-draft-model-path FOLDER       # use the result

The base model is frozen. It writes its own training texts (texts.py). Its hidden states are computed once
(base.py). The module learns to predict the base's choices (train.py). The result is written in the layout of
`nextn export-mtp` (folder.py) and measured on held-out chats (measure.py). If a run was stopped, the same
command continues it: --work keeps the texts, the states and the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from base import Base
from folder import write_folder
from measure import measure
from plot import plot
from texts import write_texts
from train import Budget, train

SHARES = {"texts": 0.4, "training": 0.5}  # shares of the time; the rest is for states and measuring


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model-path", required=True, help="the base model: any that nextn serves")
    ap.add_argument("--output", type=Path, required=True, help="the draft folder; must not exist")
    ap.add_argument(
        "--work",
        type=Path,
        help="texts, states and checkpoint (default: build-mtp-head beside the output)",
    )
    ap.add_argument(
        "--minutes", type=float, default=110.0, help="minutes for texts and training (default: 110)"
    )
    ap.add_argument(
        "--tokens",
        type=int,
        default=2_000_000,
        help="maximum tokens of the texts, which also end after 40 %% of the time",
    )
    ap.add_argument(
        "--vocabulary", type=int, default=8192, help="number of most frequent tokens that drafts may have"
    )
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    if args.output.exists():
        ap.error(f"--output {args.output} exists; name a new folder")
    work = args.work or args.output.absolute().parent / "build-mtp-head"
    work.mkdir(parents=True, exist_ok=True)
    seconds = args.minutes * 60
    texts = write_texts(
        args.model_path, work / "texts.jsonl", args.tokens, seconds * SHARES["texts"], args.seed, args.device
    )
    base = Base(args.model_path, args.device)
    states = base.states(texts, work / "states.bf16")
    budget = Budget(seconds * SHARES["training"], args.vocabulary, args.seed)
    module, tokens = train(base, texts, states, work, budget)
    write_folder(base, module, tokens, args.output)
    del states
    report = measure(args.model_path, args.output)
    (work / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(work / "log.jsonl", report, work / "training.png")
    shutil.copyfile(work / "training.png", args.output / "training.png")
    shutil.copyfile(work / "report.json", args.output / "report.json")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
