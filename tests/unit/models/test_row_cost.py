"""What log-probabilities and context cost beside a row of the model's layers."""

import dataclasses

from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig
from nextn.models.row_cost import context_cost, score_cost


def test_what_a_score_costs_follows_from_the_models_sizes():
    """Wider vocabularies cost more, deeper models make it matter less."""
    cfg = ModelConfig.from_folder(model_folder(EMBEDDED))
    cost = score_cost(cfg)
    assert 0.2 < cost < 0.6  # a third of a row was measured
    assert score_cost(dataclasses.replace(cfg, vocab_size=2 * cfg.vocab_size)) == 2 * cost
    assert score_cost(dataclasses.replace(cfg, num_hidden_layers=24)) < cost / 1.8


def test_what_a_context_costs_follows_from_the_models_sizes():
    cfg = ModelConfig.from_folder(model_folder(EMBEDDED))
    cost = context_cost(cfg)
    assert 1e-4 < cost < 1e-2  # of a row, for each position
    assert context_cost(dataclasses.replace(cfg, vocab_size=2 * cfg.vocab_size)) == cost
