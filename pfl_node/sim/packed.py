"""A message of the simulated network as its receiver decodes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pfl_node.errors import Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Offer, PeerId
from pfl_node.wire.codec import decode, encode, misfit
from pfl_node.wire.framing import parse
from pfl_node.wire.payload import Payload


@dataclass(frozen=True, slots=True)
class Packed:
    """A model and the vectors beside it after encoding and decoding, and their size in bytes on the wire."""

    model: Model
    nbytes: int
    failure: Refused | None = None  # why the receiver's decoder rejects it
    vectors: Mapping[str, Model] = field(default_factory=dict)

    @classmethod
    def of(cls, payload: Payload, wire: WireSettings) -> Packed:
        model = payload.model
        if wire.encoding in ("auto", "fp32") and not wire.zstd:
            finite = all(one.is_finite() for one in payload.models)
            wrong = None if finite else Refused(Reason.NOT_FINITE, "the model holds a NaN or an infinity")
            return cls(model, payload.size(wire), wrong, payload.vectors)
        envelope = Envelope(PeerId("-"), "-", part=model.layout.part)
        messages = list(encode(payload, envelope, wire))
        try:
            nbytes = sum(parse(message).data.nbytes for message in messages)
            offer = decode(messages, model.layout)
            return cls(offer.model, nbytes, vectors=offer.vectors)
        except Refused as refused:
            return cls(model, payload.size(wire), refused, payload.vectors)

    def offer(self, envelope: Envelope, layout: Layout) -> Offer:
        """The message as the receiver's decoder returns it; raises Refused."""
        if self.model.layout is not layout and self.model.layout != layout:
            raise misfit(self.model.layout.digest, layout)
        if self.failure:
            raise self.failure
        e, whole = envelope, layout.whole or layout
        vectors = {name: v.placed(whole.of(v.layout.part)) for name, v in self.vectors.items()}
        model = self.model.placed(layout)
        return Offer(e.sender, model, e.round, e.tag, e.samples, e.notes, vectors)
