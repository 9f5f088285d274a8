"""What a node answers to, asked of the node itself: a new call or a new field is fuzzed without a line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

Descriptor = Any  # of a message; protobuf's own types have two that do not know each other
Field = Any  # the same for the descriptor of a field
PACKET = "pfl.v2.Packet"  # what a datagram is


@dataclass(frozen=True, slots=True)
class Call:
    """One RPC. Which way it streams says how many messages there may be."""

    path: str
    request: Descriptor
    asks_many: bool = False
    answers_many: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Surface:
    calls: tuple[Call, ...]
    packet: Descriptor

    def call(self, name: str) -> Call:
        return next(call for call in self.calls if call.name == name)


def kind_of(descriptor: Descriptor) -> type[Message]:
    return GetMessageClass(descriptor)


def surface_of(address: str) -> Surface:
    """By reflection, over a channel of its own."""
    with grpc.insecure_channel(address) as channel:
        told = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(told)
        calls = tuple(
            Call(f"/{service}/{m.name}", m.input_type, m.client_streaming, m.server_streaming)
            for service in sorted(told.get_services())
            for m in pool.FindServiceByName(service).methods
        )
        return Surface(calls, pool.FindMessageTypeByName(PACKET))
