"""A channel for readers that the job does not know: committed rows that stay in its checkpoint.

Publishing is the commit itself: a row is in the channel as soon as its epoch is committed, once.
"""

from __future__ import annotations

from typing import Final

KEEP_EPOCHS = 1_000


class ChannelSink:
    """Keeps the rows of the newest `keep_epochs` epochs in the checkpoint of the job, as a channel that has
    the uid of the sink.

    Other jobs read it with `hf.ChannelSource`, Spark with the format `holdfast`. No reader is waited for:
    what is older is let go, read or not.
    """

    def __init__(self, *, keep_epochs: int = KEEP_EPOCHS) -> None:
        self.keep_epochs: Final = keep_epochs
