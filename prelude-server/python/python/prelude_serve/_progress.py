"""A progress bar on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_WIDTH = 30
_SECONDS_BETWEEN = 0.1
# Shorter work is over before a bar could be read.
_SECONDS_BEFORE = 0.3


def seconds(number: float) -> str:
    """Return a time as people read it."""
    whole = round(number)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"


class Bar:
    """A line that says how much of some work is done, drawn over itself.

    `shown` is True, False, or None for a bar on a terminal alone and only if the work takes a while.
    """

    def __init__(self, name: str, total: int, shown: bool | None, unit: str = "", scale: int = 1) -> None:
        self._name, self._total, self._unit, self._scale = name, total, unit, scale
        self._done = 0
        self._began = time.monotonic()
        self._drawn = self._began
        self._width = 0
        self._shown, self._always = shown, shown is True
        if shown is None:
            self._shown = bool(sys.stderr) and sys.stderr.isatty()
            self._drawn += _SECONDS_BEFORE - _SECONDS_BETWEEN

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # The last state stays on the screen.
        if self._width or self._always:
            self._draw()
            print(file=sys.stderr, flush=True)

    def advance(self, count: int) -> None:
        """Say that so much more is done."""
        self.set(self._done + count, self._total)

    def set(self, done: int, total: int) -> None:
        """Say how much is done, and of how much."""
        self._done, self._total = done, total
        now = time.monotonic()
        if self._shown and now - self._drawn >= _SECONDS_BETWEEN:
            self._drawn = now
            self._draw()

    def _draw(self) -> None:
        done, total = self._done, max(self._total, 1)
        took = max(time.monotonic() - self._began, 1e-6)
        full = _WIDTH * done // total
        bar = "#" * full + "-" * (_WIDTH - full)
        progress = f"{self._number(done)}/{self._number(self._total)}{self._unit}"
        line = f"{self._name} [{bar}] {progress}, {self._number(done / took)}{self._unit}/s"
        if 0 < done < self._total:
            line += f", {seconds(took / done * (self._total - done))} left"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def _number(self, number: float) -> str:
        return f"{number / self._scale:,.1f}" if self._scale > 1 else f"{number:,.0f}"
