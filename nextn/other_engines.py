"""What nextn does with options of SGLang, vLLM and xLLM that it does not have itself.

In lists of names, `*` matches any text. In NOTHING, a name with `=` takes one value, with `=*` several
values, and other names are switches. `nextn.cli.translate` uses the tables in this order. An exact name takes
precedence over `*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache

# Other spellings: vLLM's short ones, and prefixes that SGLang's parser completes.
SHORT = {
    "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel", "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size", "-n": "--nnodes", "-r": "--node-rank",
    "-asc": "--api-server-count", "-dpn": "--data-parallel-rank", "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local", "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port", "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb", "-dpe": "--data-parallel-external-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-q": "--quantization", "-sc": "--speculative-config", "-dc": "--diffusion-config",
    "-cc": "--compilation-config", "-ac": "--attention-config", "-O": "--optimization-level",
}  # fmt: skip

# Options that nextn has under another name.
REWRITTEN: dict[str, tuple[str, ...]] = {
    "--enable-prefix-caching": ("--no-disable-radix-cache",),
    "--enable-prefix-cache": ("--no-disable-radix-cache",),
    "--no-enable-prefix-caching": ("--disable-radix-cache",),
    "--no-enable-prefix-cache": ("--disable-radix-cache",),
    "--enable-log-requests": ("--log-requests",),
    "--disable-log-stats": ("--decode-log-interval", "0"),
    "--use-ray": ("--distributed-executor-backend", "ray"),
    "--disable-overlap-schedule": ("--overlap-schedule", "off"),
    "--enable-schedule-overlap": ("--overlap-schedule", "on"),
    "--no-enable-schedule-overlap": ("--overlap-schedule", "off"),
    "--async-scheduling": ("--overlap-schedule", "on"),
    "--no-async-scheduling": ("--overlap-schedule", "off"),
    "--enable-dbo": ("--enable-two-batch-overlap",),
    "--no-enable-dbo": ("--no-enable-two-batch-overlap",),
    "--speculative-adaptive": ("--speculative-num-steps", "auto"),
    "--speculative-use-rejection-sampling": ("--speculative-verify", "rejection"),
    "--speculative-use-block-verification": ("--speculative-verify", "block"),
    "--schedule-policy priority": ("--enable-priority-scheduling",),
    "--scheduling-policy priority": ("--schedule-low-priority-values-first",),
}

# With --device cuda, options with this reason are refused.
GRAPHS = "a CPU has no CUDA graphs; on a GPU, only --disable-cuda-graph switches them off"
# Options without effect, with any value. They are noted in one line of the log.
NOTHING = {
    GRAPHS: ("--disable-decode-cuda-graph --disable-prefill-cuda-graph --disable-piecewise-cuda-graph"),
    "no code of a checkpoint is ever run": "--trust-remote-code",
    "requests are logged only with --log-requests": "--disable-log-requests --no-enable-log-requests",
    "there is no access log": (
        "--disable-uvicorn-access-log --uvicorn-log-level= --log-level-http= "
        "--disable-access-log-for-endpoints= --uvicorn-access-log-exclude-prefixes=*"
    ),
    "a GPU's CUDA graphs are captured at start or when the load needs them; a CPU has none": (
        "--cuda-graph-*= --cuda-graph-bs=* --cuda-graph-bs-decode=* --cuda-graph-bs-prefill=* "
        "--context-bucket=* --cudagraph-capture-sizes=* --max-cudagraph-capture-size= "
        "--max-seq-len-to-capture= --disable-cuda-graph-padding --enable-cudagraph-gc --enable-graph* "
        "--acl-graph-decode-batch-size-limit= --max-tokens-for-graph-mode= --enable-prefill-piecewise-graph "
        "--enable-profile-cuda-graph"
    ),
    "texts never depend on the batch": "--enable-deterministic-inference",
    "prompts and decoding requests always share a step": "--enable-mixed-chunk --enable-chunked-prefill",
    "ranks exchange data in one way": (
        "--disable-custom-all-reduce --enable-p2p-check --nccl-port= --all2all-backend= "
        "--cpu-distributed-timeout-seconds= --moe-a2a-backend= --deepep-mode= --enable-nccl-nvls "
        "--enable-symm-mem --enable-torch-symm-mem --enable-mscclpp --pre-warm-nccl "
        "--enable-dp-attention-local-control-broadcast --enable-dp-lm-head "
        "--expert-parallel-degree= --disable-nccl-for-dp-synchronization --data-parallel-backend= "
        "--data-parallel-address= --data-parallel-rpc-port= --communication-backend= "
        "--max-parallel-loading-workers= --enforce-disable-flashinfer-allreduce-fusion "
        "--disable-attn-tp-gather"
    ),
    "each server learns the other's sizes when they connect": (
        "--disaggregation-decode-tp= --disaggregation-decode-dp= --disaggregation-prefill-pp="
    ),
    "--disaggregation-transfer-backend selects how pages are transferred": "--disaggregation-ib-device=",
    "pages that arrive are always checked": "--disaggregation-enable-kv-checksum",
    "a decode server has a prefix cache without it": "--disaggregation-decode-enable-radix-cache",
    "pages are fetched when there is room for the whole request, without polling": (
        "--num-reserved-decode-tokens= --disaggregation-decode-polling-interval="
    ),
    "--instance-role says which part of requests this server computes; without it, all": "--enable-disagg-pd",
    "it is the default": "--constrained-json-disable-any-whitespace",
    "it is always on": (
        "--enable-single-batch-overlap --enable-tokenizer-info-endpoint --enable-request-id-headers "
        "--enable-cache-report "
        "--enable-prompt-tokens-details --enable-multi-layer-eagle --enable-constrained-decoding"
    ),
    "--tool-call-parser is enough": "--enable-auto-tool-choice",
    "no warm-up request is sent": "--skip-server-warmup",
    "nextn has one way to read checkpoints": (
        "--use-tqdm-on-load --weight-loader-disable-mmap --weight-loader-prefetch-checkpoints "
        "--weight-loader-prefetch-num-threads= --weight-loader-drop-cache-after-load "
        "--safetensors-load-strategy= --safetensors-prefetch-num-threads= --safetensors-prefetch-block-size= "
        "--startup-weight-load-mode= --pt-load-map-location="
    ),
    "nextn serves only texts": "--language-model-only --skip-mm-profiling",
    "retracted requests are computed again": "--swap-space= --retraction-policy=",
    "nextn has no grammar cache on disk": "--disable-outlines-disk-cache",
    "nextn has no such feature or choice": (
        "--disable-cascade-attn --disable-fast-image-processor --disable-chunked-prefix-cache "
        "--disable-hybrid-kv-cache-manager --disable-hybrid-swa-memory --disable-shared-experts-fusion "
        "--disable-flashinfer-autotune --disable-sliding-window --disable-tokenizer-batch-decode "
        "--disable-priority-preemption --use-v2-block-manager --disable-ttft-profiling "
        "--use-cpp-chat-template --num-threads= --num-request-handling-threads= "
        "--num-response-handling-threads= --flashinfer-mla-disable-ragged"
    ),
}

NO_OTHER_WAY = (
    "nextn runs ranks (--tp-size, --nnodes), replicas (--dp-size) and shards of experts (--ep-size) only"
)
# (options, values without effect, reason). Any other value is refused. The reason says why, or what to use
# instead.
ONLY: tuple[tuple[str, str, str], ...] = (
    (
        "--data-parallel-size-local --pp --pp-size --pipeline-parallel-size "
        "--cp-size --sp-size --dcp-size --decode-context-parallel-size "
        "--prefill-context-parallel-size --attn-cp-size "
        "--attention-context-parallel-size --moe-dp-size --moe-data-parallel-size --moe-dense-tp-size "
        "--dwdp-size --kv-split-size --gpu-id-step --shared-experts-tp-size --micro-batch-num "
        "--dcp-kv-cache-interleave-size --cp-kv-cache-interleave-size --max-ep-size --elastic-ep-max-dp-size",
        "1",
        NO_OTHER_WAY,
    ),
    ("--base-gpu-id --device-id --device-ids", "0 -1", NO_OTHER_WAY),
    (
        "--expert-placement-strategy",
        "linear",
        "experts are in order; --init-expert-location FILE places them otherwise",
    ),
    (
        "--tokenizer-worker-num --detokenizer-worker-num --api-server-count --renderer-num-workers",
        "1",
        "one process answers HTTP",
    ),
    (
        "--schedule-policy --scheduling-policy --priority-strategy",
        "fcfs lpm",
        "waiting requests are served in order of arrival, or by priority: see --enable-priority-scheduling",
    ),
    ("--attention-backend", "auto", "--kernel-backend chooses the kernels"),
    ("--kv-cache-dtype", "auto", "the KV cache has the type of --dtype"),
    (
        "--num-continuous-decode-steps --num-scheduler-steps --stream-interval --prefill-schedule-interval "
        "--scheduler-recv-interval",
        "1",
        "each step is planned and streamed separately",
    ),
    ("--runner --task", "auto generate", "nextn only generates text"),
    ("--generation-config", "vllm", "requests without sampling parameters get the API's defaults"),
    ("--sampling-defaults", "openai", "requests without sampling parameters get the API's defaults"),
    ("--chat-template-content-format", "auto string", "the chat template gets messages as text"),
    ("--response-role", "assistant", "answers have the role assistant"),
    ("--log-requests-format", "text", "--log-format sets the form of all lines"),
    ("--beam-width", "0 1", "there is no beam search"),
    ("--radix-eviction-policy", "lru", "the prefix cache evicts the least recently used pages"),
    ("--max-tokens-per-chunk-for-prefill", "-1", "--chunked-prefill-size limits a step"),
    (
        "--no-enable-chunked-prefill --disable-chunked-prefill",
        "",
        "prompts are always chunked; set --chunked-prefill-size to the longest prompt for one chunk",
    ),
    ("--max-logprobs", "20", "a request gets at most 20 log-probabilities of a token"),
    ("--schedule-conservativeness", "1.0 1", "nextn reserves pages as requests need them"),
)

# Options that nextn refuses, searched in this order. A value such as 0, none or false has no effect, and is
# noted.
OFF = {"0", "none", "null", "off", "false", "auto", "disabled", "-1", "no", ""}
REFUSED = {
    "LoRA adapters are not served": "--*lora*",
    "nextn serves texts, and no images, audio or video": (
        "--mm-* --*-mm-* --*multimodal* --image-* --media-* --allowed-*media* --video-* --encoder-* --dit-* "
        "--asr-* --vae-* --ec-* --cfg-size --use-audio-in-video --limit-image-* --max-encoder-* "
        "--language-only --*-to-encoder --enable-precise-* --enable-encoder-* --disable-chunked-mm-input"
    ),
    "KV pages are transferred over TCP, shared memory or NIXL (--disaggregation-transfer-backend)": (
        "--kv-cache-transfer-* --kv-push-* --kv-transfer-*"
    ),
    "decode servers ask a prefill server at its --disaggregation-bootstrap-port": "--disagg-pd-port",
    "the gateway is configured with the servers; they do not register": (
        "--enable-service-routing --etcd-* --rpc-* --heart-beat-* --max-reconnect-count "
        "--health-check-interval-ms"
    ),
    "prompts share steps with decoding requests": "--pdmux-* --enable-pdmux --sm-group-num",
    "a server's --disaggregation-mode does not change": "--enable-pd-role-switch --enable-pd-ooc",
    "docs/disaggregation.md says how prompts and answers are computed on two servers": (
        "--disaggregation-* --enable-pd* --optimistic-prefill-attempts --decoupled-spec-*"
    ),
    "--eplb-rebalance-num-iterations, --eplb-min-rebalancing-utilization-threshold say when experts move": (
        "--eplb-update-*"
    ),
    NO_OTHER_WAY: (
        "--data-parallel-* --dp-* --dcp-* --*-dp-* --headless --device-ids --devices --draft-devices "
        "--ray-* --*elastic* --*eplb* --ep-* --*-ep-* --expert-* --*redundant-experts* "
        "--*waterfill --dbo-* --tbo-* "
        "--ubatch-size --worker-* --pp-* --*allreduce-fusion* --enable-quant-communications --deepep-* "
        "--fuseep-mode --flashinfer-a2a-* --*-a2a-* --mooncake-ib-device --enable-prefill-cp --cp-strategy "
        "--enable-cp-* --*-attn-tp* --enable-tp-* --enable-layernorm-sp --*-layernorm-sp "
        "--boundary-reduction --enable-kv-cache-sharding --enable-dsa-cache-layer-split --enable-hc-sp "
        "--*scattered* --enable-batch-sharded-sampling --enable-shm* --enable-fault-tolerance "
        "--fault-tolerance-config --rank-tablefile --enable-prefill-sp --gated-launch-port "
        "--enable-dynamic-chunking --input-shm-size --output-shm-size --dp-sync-interval --enable-xtensor "
        "--xtensor-* --enable-scale-out --start-port --start-device-id "
        "--disable-flashinfer-cutlass-moe-fp4-allgather --phy-page-granularity-size"
    ),
    "start nextn under numactl": "--numa-*",
    "weights and KV cache are in the device's memory only; see --kv-cache-tokens": (
        "--cpu-offload-* --offload-* --hicache-* --*hierarchical* --enable-hicache --kv-offloading-* "
        "--*lmcache* --*flexkv* --*hisparse* --kt-* --ple-* --radix-* --*-unified-* --unified-* --*linker* "
        "--store-* --host-blocks-factor --*kvcache-store --*paged-experts* --enable-session-* "
        "--enable-streaming-session --enable-page-major-kv-layout --c128-page-size --num-gpu-blocks-override "
        "--kv-cache-memory-bytes --enable-memory-saver --*weights-cpu-backup --*sleep* "
        "--enable-cumem-allocator --prefetch-* --enable-prefetch-weight --layers-wise-copy-batchs "
        "--*rolling-load* --enable-manual-loader --max-cache-size --use-zero-evict "
        "--enable-nccl-comm-suspend"
    ),
    "models with state spaces, windows, sparse attention or diffusion are not served": (
        "--mamba-* --*-mamba* --linear-attn-* --*swa* --dsa-* --dsv4-* --*dsa-* --*replayssm* --gdn-* "
        "--kda-* --*indexer* --*hybrid* --dllm-* --diffusion-* --engram-*"
    ),
    "recommendation and embedding models are not served": (
        "--*-rec-* --rec-* --*beam-search* --is-embedding --pooler-* --convert --io-processor-plugin "
        "--enable-qwen3-reranker --prefill-only-* --*flash-late* --enable-extended-item-info "
        "--enable-output-sku-* --*xattention* --enable-convert-tokens-to-item --each-conversion-threshold "
        "--total-conversion-threshold --enable-topk-* --max-decode-rounds --max-requests-per-batch "
        "--enable-mis --max-linear-state-*"
    ),
    "see --quantization, and docs/draft-folders.md for the drafter": (
        "--quantization-* --modelopt-* --quantize-* --rl-quant-* --allow-deprecated-quantization --*w4a4* "
        "--kv-cache-dtype-* --flashinfer-mxfp4-*"
    ),
    "--kernel-backend chooses the kernels": (
        "--*-attention-backend --attention-config --*gemm-backend* --moe-* --sampling-backend --*-autotune* "
        "--triton-* --enable-tf32-* --enable-fp32-lm-head --*lean-attention --*megakernel --*monokernel* "
        "--*fused* --linear-backend --ir-op-* --kernel-config --*torch-compile* --compilation-* "
        "--optimization-level --performance-mode --npu-* --*aclnn* --*atb* --*kernel --*addnorm --*rmsnorm* "
        "--flashinfer-* --enable-multi-stream-parallel --use-contiguous-input-buffer --mlx-* "
        "--speculative-attention-mode --speculative-moe-* --use-fp64-gumbel --backend --monokernel-backend "
        "--additional-config --enable-opt-validate-probs --enforce-shared-experts-fusion "
        "--prefill-kv-cache-dequant-dtype"
    ),
    "nextn serves plain HTTP/1.1; use a proxy in front for more": (
        "--ssl-* --*ssl-refresh --*http2* --root-path --fastapi-root-path --allow-credentials --allowed-* "
        "--middleware --uds --*reuseport --h11-* --*grpc* --smg-* --sidecar* --*fastapi-docs --*offline-docs "
        "--admin-api-key"
    ),
    "nextn downloads nothing; run hf download MODEL --local-dir DIR first": (
        "--revision --*-revision --download-dir --hf-token --hf-config-path --remote-instance-* "
        "--modelexpress-* --ignore-patterns"
    ),
    "the checkpoint is read from --model-path without changes": (
        "--hf-overrides --json-model-* --model-impl --model-loader-* --config-format --model-config-* "
        "--model-class-* --decrypted-* --custom-weight-* --delete-ckpt-* --model-checksum --weight-* "
        "--checkpoint-* --engine-info-* --speculative-draft-load-format"
    ),
    "the tokenizer comes from --model-path": (
        "--tokenizer --tokenizer-* --skip-tokenizer-init --tokens-only --enable-prompt-embeds "
        "--*tokenizer-batch* --*batch-tokenizer* --batch-notify-size"
    ),
    "write the options on the command line": (
        "--config --config-json-file --*dump-config-json* --override-generation-config "
        "--preferred-sampling-params --log-config-file --logging-config --binary-path --dry-run"
    ),
    "--grammar-backend chooses the library; docs/structured-output.md lists what requests may ask for": (
        "--structured-outputs-config --guided-* --constrained-json-* --reasoning-config --*strict-thinking "
        "--logits-processor* --*logit-processor --tool-strict-level --*thinking-cache"
    ),
    "only --chat-template is supported; requests may send chat_template_kwargs": (
        "--completion-template --trust-request-* --hf-chat-* --default-chat-template-kwargs --tool-server "
        "--*-plugin --cohere-* --anthropic-* --exclude-tools-* --enable-response-store --file-storage-path"
    ),
    "--speculative-algorithm lists the drafters, docs/speculative.md their options": (
        "--speculative-dflash-* --speculative-domino-* --speculative-dspark-* --speculative-draft-kv-* "
        "--speculative-draft-window-* --speculative-draft-sink-* --speculative-ngram-* "
        "--speculative-suffix-* --speculative-adaptive-config --spec-trace-dir --speculative-config.*"
    ),
    "docs/operations.md says what nextn logs, counts and traces": (
        "--*metrics* --log-requests-target --crash-* --show-* --*nvtx* --debug-* --*trace* --otlp-* "
        "--*histogram* --bucket-* --*-buckets --kv-events-* --load-* --gc-* --forward-* --msprobe-* "
        "--kv-canary* --*logging* --jit-* --log-error-stack --max-log-len "
        "--enable-log-* --extra-metric-labels --fail-on-environ-* --*watermark* "
        "--enable-server-load-tracking --log-dir --no-log-files --aggregate-engine-logging "
        "--enable-online-profile --max-global-*"
    ),
    "see --profile-steps and --profile-dir, and /start_profile in docs/performance.md": (
        "--profile* --enable-profile-*"
    ),
    "answers have the fields that docs/api.md lists": (
        "--return-* --enable-return-* --weight-version --fingerprint-* --enable-force-* --stream-* "
        "--incremental-* --sse-* --aux-output-* --logprobs-mode --sampling-mask-* --allow-auto-truncate "
        "--rl-*"
    ),
    "nextn plans steps itself; see --chunked-prefill-size, --max-running-requests, --max-queued-requests": (
        "--prefill-* --*prefill-delayer* --long-prefill-* --max-num-scheduled-* --max-num-active-* "
        "--max-num-queued-tokens --scheduler-* --watermark "
        "--priority-scheduling-* --default-priority-* --abort-on-priority-* --min-free-* --kv-sharing-* "
        "--*starve* --*latency-aware* --use-mix-scheduler --*in-batch-prefix-cache --prefix-* --*preempt* "
        "--aggressive-* --*match-frequency --max-concurrent-requests --max-decode-token-* --xxh3-* "
        "--*forward-interruption --*control-h2d* --sleep-on-idle --soft-watchdog-timeout --warmups "
        "--num-lookahead-slots --preemption-mode"
    ),
}


@cache
def only() -> Mapping[str, tuple[tuple[str, ...], str]]:
    """name -> (values without effect, reason)."""
    return {name: (tuple(values.split()), reason) for names, values, reason in ONLY for name in names.split()}


def nothing(name: str) -> tuple[str, str] | None:
    """For an option without effect: (reason, "" for a switch, "=" or "=*" if it takes values). None if it is
    not in the table."""
    return _find(NOTHING, name)


def refused(name: str) -> tuple[str, str] | None:
    """For an option that is refused: (reason, ""). None if it is not in the table."""
    return _find(REFUSED, name)


def _find(table: Mapping[str, str], name: str) -> tuple[str, str] | None:
    named = [(reason, *part.partition("=")) for reason, names in table.items() for part in names.split()]
    for fits in (str.__eq__, fnmatchcase):
        for reason, pattern, equals, several in named:
            if fits(name, pattern):
                return reason, equals + several
    return None
