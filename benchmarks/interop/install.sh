#!/usr/bin/env bash
# Installs one load client from PyPI into a virtual environment of its own:
#
#   benchmarks/interop/install.sh sglang|vllm|guidellm [DIR]     (DIR: .interop)
#
# PYTHON names the interpreter (default python3; sglang needs 3.11 or newer).
set -euo pipefail

client=${1:?"name a client: sglang, vllm or guidellm"}
dir=${2:-.interop}
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
env=$dir/$client
pip=("$env/bin/python" -m pip install -q)

# sglang asks for CUDA kernels that its load client never touches: it comes without its dependencies, and
# with what `python -m sglang.benchmark.serving` imports.
install_sglang() {
  "${pip[@]}" torch torchvision transformers==5.19.0 numpy aiohttp requests tqdm msgspec orjson pybase64 \
    pillow datasets ipython psutil pyzmq fastapi uvicorn uvloop sentencepiece prometheus-client \
    partial_json_parser einops compressed-tensors apache-tvm-ffi gguf
  "${pip[@]}" --no-deps sglang==0.5.23
}

# The environment is that of the peers' vLLM; its load client reads prompts with pandas.
install_vllm() {
  "$here/../peers/install.sh" vllm "$dir"
  "${pip[@]}" pandas
}

install_guidellm() {
  "${pip[@]}" torch==2.13.0 numpy  # what nextn itself is measured with
  "${pip[@]}" guidellm==0.8.1
}

case $client in
  sglang | vllm | guidellm) ;;
  *) echo "$client is not a client: sglang, vllm or guidellm" >&2; exit 2 ;;
esac
mkdir -p "$dir"
[ -x "$env/bin/python" ] || "$python" -m venv "$env"
"install_$client"
echo "$client is ready in $env"
