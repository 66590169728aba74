"""Many inputs as requests of a few inputs each, several of which are under way at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ._errors import Overloaded, RequestError

# A request refused for one of these may be answered in two halves.
_TOO_LARGE = {"too_many_rows", "too_many_numbers", "larger_than_queue", "body_too_large"}

# A refused request is sent again while others leave the queue, for so long.
_SECONDS_REFUSED = 60.0
_FIRST_PAUSE = 0.005
_LAST_PAUSE = 0.5

Waiting = Callable[[], Any]


def answers(
    ask: Callable[[int, int], Waiting],
    count: int,
    batch_size: int,
    at_once: int,
) -> Iterator[tuple[int, int, Any]]:
    """Yield the answers about inputs 0 to `count`, in order: first input, end, answer.

    `ask(start, stop)` sends a request and returns a function that waits for its answer. A request of
    several inputs that is refused for its size is asked again in halves, and those after it are as small.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    sent: deque[tuple[int, int, Waiting]] = deque()
    next_ = 0

    def taken(start: int, stop: int, wait: Waiting) -> Iterator[tuple[int, int, Any]]:
        nonlocal batch_size
        try:
            yield start, stop, _patiently(ask, start, stop, wait)
        except RequestError as error:
            if error.reason not in _TOO_LARGE or stop - start == 1:
                raise
            middle = (start + stop) // 2
            batch_size = max(1, min(batch_size, middle - start))
            for begin, end in ((start, middle), (middle, stop)):
                yield from taken(begin, end, ask(begin, end))

    try:
        while sent or next_ < count:
            while next_ < count and len(sent) < at_once:
                stop = min(next_ + batch_size, count)
                sent.append((next_, stop, ask(next_, stop)))
                next_ = stop
            yield from taken(*sent.popleft())
    finally:
        # An error is kept by who shows it, and with it this variable: what was sent would run on.
        sent.clear()


def _patiently(ask: Callable[[int, int], Waiting], start: int, stop: int, wait: Waiting) -> Any:
    """Return the answer to a request, which is sent again for a while if the queue is full."""
    until = time.monotonic() + _SECONDS_REFUSED
    pause = _FIRST_PAUSE
    while True:
        try:
            return wait()
        except Overloaded as error:
            if error.reason not in ("queue_full", "class_quota") or time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)
        wait = ask(start, stop)
