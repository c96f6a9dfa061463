#!/usr/bin/env bash
# Installs schemathesis from PyPI into a virtual environment of its own (it brings its own pytest plugin and
# hypothesis, and needs nothing of nextn's):
#
#   benchmarks/fuzz/install.sh [DIR]     (DIR: .fuzz)
#
# PYTHON names the interpreter (default python3). atheris, for parsers.py, goes beside nextn: pip install atheris.
set -euo pipefail

env=${1:-.fuzz}
"${PYTHON:-python3}" -m venv "$env"
"$env/bin/python" -m pip install -q schemathesis==4.32.5
