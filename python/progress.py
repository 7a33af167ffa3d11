"""How far a long step is: one line that is rewritten on a terminal, a plain line now and then elsewhere."""

import sys
import time

PLAIN_SECONDS = 10


class Progress:
    def __init__(self, label, total, unit="tokens", stream=sys.stdout):
        self._label, self._total, self._unit, self._stream = label, total, unit, stream
        self._started = self._last = time.monotonic()
        self._terminal = stream.isatty()

    def update(self, done, more=""):
        now = time.monotonic()
        elapsed = now - self._started
        line = f"{self._label}: {done:,} of {self._total:,} {self._unit}, {elapsed:.0f} s{more}"
        if self._terminal:
            width = 24
            filled = width * done // self._total
            self._stream.write(f"\r\x1b[K[{'#' * filled}{'.' * (width - filled)}] {line}")
            if done >= self._total:
                self._stream.write("\n")
        elif done >= self._total or now - self._last >= PLAIN_SECONDS:
            self._last = now
            self._stream.write(line + "\n")
        self._stream.flush()
