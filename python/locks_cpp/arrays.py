from typing import Any, Protocol


class Array(Protocol):
    """What NumPy, torch and others call an array: it can be seen through DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
