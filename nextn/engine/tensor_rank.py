"""Every rank but 0 of an engine on this machine, as a process: `nextn.engine.tensor_parallel` starts it."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import sys
import traceback

from nextn.distributed.group import PeerGone
from nextn.distributed.life import die_with_parent
from nextn.distributed.numa import pin
from nextn.distributed.process import opened
from nextn.distributed.pulse import Pulse
from nextn.engine.rank import make_runner
from nextn.engine.tensor_parallel import GONE, digest, ranks_of
from nextn.scheduler.plan import Plan
from nextn.speculative.state import RequestState

log = logging.getLogger("nextn.engine")


def main(arguments: list[str]) -> None:
    """It ends with rank 0, whose end of the link is closed then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
    link, memory, parent = opened(arguments)
    die_with_parent(parent)
    try:
        config, rank = link.recv()
    except GONE:
        return
    ranks = ranks_of(config, rank, memory)
    # What every rank would say, rank 0 says.
    logging.basicConfig(level=logging.WARNING, format=f"[tp{rank}] %(name)s: %(message)s")
    if config.numa == "auto":
        pin(rank, config.tp_size)
    try:
        runner = make_runner(config, ranks)
    except Exception as e:
        if not isinstance(e, (ValueError, OSError)):
            traceback.print_exc()
        with contextlib.suppress(*GONE):  # rank 0 found the same, and may have ended
            link.send(e)
        return
    with contextlib.suppress(*GONE):
        link.send(runner.info)

    def lost(silent: int) -> None:
        if silent == 0:
            log.critical("rank 0 does not answer; all ranks end")
            if os.getppid() == parent:
                os.kill(parent, signal.SIGKILL)  # for its supervisor to start another
            os._exit(1)

    pulse = Pulse(ranks, lost)
    try:
        while True:
            message: RequestState | str | Plan = pickle.loads(link.recv_bytes())
            if isinstance(message, RequestState):
                runner.add(message)
            elif isinstance(message, str):
                runner.drop(message)
            else:
                result = runner.launch(message).result()
                if config.check_integrity:
                    link.send(digest(result))
    except (*GONE, PeerGone):
        pass  # rank 0 says what there is to say
    except Exception:
        log.critical("rank %d failed and ends:\n%s", rank, traceback.format_exc())
        sys.exit(1)
    finally:
        pulse.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
