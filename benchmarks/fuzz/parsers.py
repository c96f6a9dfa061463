"""Fuzzes the server's readers of tokens, texts and bodies, with the properties of properties.py.

python benchmarks/fuzz/parsers.py                          # each for a minute
python benchmarks/fuzz/parsers.py streamed --seconds 600

With atheris (pip install atheris, if there is a wheel) the bytes are chosen by the coverage of nextn's code.
Without it hypothesis draws them at random, as in the tests. A finding ends the run with the property's error
and the bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time

NAMES = ("parts", "text", "streamed", "bodies")
LONGEST = 400  # bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("property", nargs="*", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each (default: 60)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # one, in this process
    args = parser.parse_args()
    if unknown := [name for name in args.property if name not in NAMES]:
        parser.error(f"{unknown[0]} is no property; there are {', '.join(NAMES)}")
    if args.here:
        fuzz(args.property[0], args.seconds)
        return 0
    failed = []
    for name in args.property or NAMES:  # each in its own process, because atheris never returns
        command = [sys.executable, __file__, name, "--seconds", str(args.seconds), "--here"]
        if subprocess.run(command).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all hold")
    return bool(failed)


def fuzz(name: str, seconds: float) -> None:
    if importlib.util.find_spec("atheris") is None:
        by_hypothesis(name, seconds)
        return
    import atheris

    with atheris.instrument_imports(include=["nextn"]):
        from properties import PROPERTIES
    options = [f"-max_total_time={seconds:.0f}", f"-max_len={LONGEST}", "-timeout=20", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options], PROPERTIES[name])
    atheris.Fuzz()


def by_hypothesis(name: str, seconds: float) -> None:
    from hypothesis import given, settings
    from hypothesis import strategies as st
    from properties import PROPERTIES

    run = settings(max_examples=1000, deadline=None)(given(st.binary(max_size=LONGEST))(PROPERTIES[name]))
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        run()
        rounds += 1
    print(f"{name}: {rounds * 1000} examples drawn")


if __name__ == "__main__":
    sys.exit(main())
