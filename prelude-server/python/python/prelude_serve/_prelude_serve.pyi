from collections.abc import Callable
from typing import final

__version__: str

def run(arguments: list[str]) -> int:
    """Runs the program `prelude` with the arguments behind its name, and returns its exit code."""

class PreludeError(Exception):
    """The base of all exceptions of this package that are about a model or a request."""

class LoadError(PreludeError):
    """A model cannot be found, downloaded, read or put on its device. The message says which and what to do."""

@final
class Engine:
    """A model in service, in this process. Requests are answered as by a server, without one."""

    @staticmethod
    def load(
        options: str,
        report: Callable[[int, int, int, int], object] | None = None,
        beside: Engine | None = None,
    ) -> Engine:
        """Loads a model. `options` is a JSON object. `report` is called with bytes, bytes in total, files
        and files in total while the model is downloaded. With `beside`, the model shares the threads
        of another engine."""
    @property
    def name(self) -> str:
        """The name of the model."""
    @property
    def labels(self) -> list[str]:
        """The names of the model's classes; none of a model that has none of its own."""
    @property
    def memory(self) -> str:
        """The memory that the model was planned to take, in words."""
    @property
    def warnings(self) -> list[str]:
        """Warnings about the model: tasks that it cannot do, files that may be old."""
    def answer(self, method: str, path: str, body: bytes, strict: bool) -> tuple[int, bytes]:
        """Answers a request: its status and its body. With `strict`, unknown fields are refused."""
    def send(self, method: str, path: str, body: bytes, strict: bool) -> Call:
        """Sends a request, whose answer is waited for later. If the call is dropped before, the request
        is aborted."""
    def close(self) -> None:
        """Stops the engine when the requests that run have ended. A second time does nothing."""

@final
class Call:
    """A request that was sent."""

    def wait(self) -> tuple[int, bytes]:
        """Waits for the answer: its status and its body. Can be called once."""
