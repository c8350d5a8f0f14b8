"""The control API and the metrics of a running job, over HTTP."""

from holdfast.dashboard.server import Server, serve

__all__ = ["Server", "serve"]


def __dir__() -> list[str]:
    return sorted(__all__)
