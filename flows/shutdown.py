"""SIGTERM and SIGINT: drain at an epoch's end and leave with exit status 0.

Bytewax has no call for it (bytewax/bytewax#495). The signals are blocked in all threads and waited for in
one; the source, told by `Drain`, stops reading once its epoch is closed and ends the run once that
epoch is committed. A watchdog ends the process the hard way if that takes too long.
"""

import os
import signal
import threading
from collections.abc import Callable

EXIT_STUCK = 75  # EX_TEMPFAIL: what was not committed is repeated at the next start

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def on_signals(drain: Callable[[], None], patience_s: float, log: Callable[[str], None]) -> None:
    """Call `drain` at the first signal; leave with EXIT_STUCK if the process still runs `patience_s` later.

    Must be called from the main thread before any other thread starts: threads inherit the blocked mask.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> None:
        received = signal.sigwait(_SIGNALS)
        log(f"{signal.Signals(received).name}: draining, at most {patience_s:g} s")
        drain()
        threading.Event().wait(patience_s)
        log("drain took too long; leaving without it, the last epoch will be repeated")
        os._exit(EXIT_STUCK)

    threading.Thread(target=wait, name="signals", daemon=True).start()
