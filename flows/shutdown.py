"""SIGTERM and SIGINT: drain at an epoch's end and leave with exit status 0.

Bytewax has no call for it (bytewax/bytewax#495), and while it runs Python's handlers may wait long for
their turn. So a thread waits for the byte that Python's C handler writes to the wakeup descriptor at
once, whichever thread the kernel chose (libraries start threads of their own, so that masks cannot
decide it). The source, told by `Drain`, stops reading once its epoch is closed and ends the run once
that epoch is committed. A watchdog ends the process the hard way if that takes too long.
"""

import os
import signal
import threading
from collections.abc import Callable

EXIT_STUCK = 75  # EX_TEMPFAIL: what was not committed is repeated at the next start

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def on_signals(drain: Callable[[], None], patience_s: float, log: Callable[[str], None]) -> None:
    """Call `drain` at the first signal; leave with EXIT_STUCK if the process still runs `patience_s` later.

    Must be called from the main thread.
    """
    received, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # the default would end the process

    def wait() -> None:
        name = ""
        while not name:  # other signals with a Python handler write here too
            number = os.read(received, 1)[0]
            name = signal.Signals(number).name if number in _SIGNALS else ""
        log(f"{name}: draining, at most {patience_s:g} s")
        drain()
        threading.Event().wait(patience_s)
        log("drain took too long; leaving without it, the last epoch will be repeated")
        os._exit(EXIT_STUCK)

    threading.Thread(target=wait, name="signals", daemon=True).start()
