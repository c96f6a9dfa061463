"""Published config.json files, reduced to the keys that describe a model, and the numbers of parameters."""

from __future__ import annotations

from typing import Any

_GLM: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": True,
    "attention_dropout": 0.0, "pad_token_id": 151329, "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128, "hidden_act": "silu", "partial_rotary_factor": 0.5, "norm_topk_prob": True,
    "num_attention_heads": 96, "num_key_value_heads": 8, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 1000000, "tie_word_embeddings": False, "vocab_size": 151552,
}  # fmt: skip
_GLM_LARGE: dict[str, Any] = {
    **_GLM, "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
    "n_routed_experts": 160, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3,
    "num_hidden_layers": 92, "use_qk_norm": True,
}  # fmt: skip
_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 40960, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip

# name -> (config.json, parameters of the target, parameters of its NextN module), both in 1e9
PUBLISHED: dict[str, tuple[dict[str, Any], float, float]] = {
    "GLM-4.5-Air": (
        {
            **_GLM, "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "n_routed_experts": 128, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
            "num_hidden_layers": 46, "use_qk_norm": False, "max_position_embeddings": 131072,
        },
        106.9, 2.4,
    ),
    "GLM-4.6": ({**_GLM_LARGE, "max_position_embeddings": 202752}, 352.8, 4.0),
    "MiMo-7B-RL": (
        {
            "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "attention_bias": True,
            "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
            "max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 32,
            "num_hidden_layers": 36, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
            "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 640000, "sliding_window": 32768,
            "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151680,
        },
        7.6, 0.2,
    ),
    "Qwen3-0.6B": (
        {
            **_QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "max_window_layers": 28,
            "num_attention_heads": 16, "num_hidden_layers": 28, "tie_word_embeddings": True,
        },
        0.6, 0,
    ),
    "Qwen3-8B": (
        {
            **_QWEN3, "hidden_size": 4096, "intermediate_size": 12288, "max_window_layers": 36,
            "num_attention_heads": 32, "num_hidden_layers": 36, "tie_word_embeddings": False,
        },
        8.2, 0,
    ),
    "Llama-3.1-8B": (
        {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
            "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
            "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
            "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "rope_theta": 500000.0, "tie_word_embeddings": False, "vocab_size": 128256,
        },
        8.0, 0,
    ),
    "SmolLM2-135M": (
        {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
            "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576,
            "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192,
            "mlp_bias": False, "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
            "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None,
            "rope_theta": 100000, "tie_word_embeddings": True, "vocab_size": 49152,
        },
        0.1, 0,
    ),
}  # fmt: skip
