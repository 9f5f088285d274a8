"""`wire.encoding = "auto"`: chooses the encoding of a model by the link to its receiver. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pfl_node.settings import WireSettings
from pfl_node.wire.bandwidth import Bandwidth

SHORT = 2.0  # seconds; a transfer that takes no longer is not worth the loss of precision


class AutoEncoding:
    """fp32 on fast links; int8 and zstd where a transfer would take longer than the node's training."""

    def __init__(self, settings: WireSettings) -> None:
        auto = settings.encoding == "auto"
        compact = {"encoding": "int8", "zstd": max(1, settings.zstd)}
        self.training: Callable[[], float] = lambda: 0.0  # seconds of the node's last training
        self._fast = settings.model_copy(update={"encoding": "fp32"}) if auto else settings
        self._slow = settings.model_copy(update=compact) if auto else settings

    def of(self, bandwidth: Bandwidth, size: Callable[[WireSettings], int]) -> WireSettings:
        """The settings with which to encode a payload. `size`: its bytes with given settings."""
        if self._fast is self._slow:
            return self._fast
        slow = bandwidth.slow(size(self._fast), max(SHORT, self.training()))
        return self._slow if slow else self._fast
