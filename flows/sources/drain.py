"""Ending a run without a repeat: all parts of the source stop at an epoch's end, and the run after its commit.

Bytewax calls `snapshot()` of a part when an epoch closes, and its `next_batch()` again only once that
epoch is committed (bytewax 0.21.1, src/inputs.rs). So a part that was asked to drain stops reading in
`snapshot()`, leaves at the next `next_batch()`, and the last to leave ends the run.
"""

import threading


class Drain:
    """The request to drain and who has not followed it yet. Thread-safe; used by the parts of one process."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._lock = threading.Lock()
        self._reading: set[str] = set()

    def set(self) -> None:
        """Ask all parts to drain; returns at once."""
        self._requested.set()

    def is_set(self) -> bool:
        return self._requested.is_set()

    def enter(self, part: str) -> None:
        """A part has started to read."""
        with self._lock:
            self._reading.add(part)

    def leave(self, part: str) -> None:
        """All that a part has read is committed, and it will read no more."""
        with self._lock:
            self._reading.discard(part)

    @property
    def finished(self) -> bool:
        """Whether the run can end: all parts were asked to drain, and have left."""
        with self._lock:
            return self.is_set() and not self._reading
