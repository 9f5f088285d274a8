"""The client side of the Peer service."""

from __future__ import annotations

from typing import Any

from pfl_node.wire import peer_pb2 as pb

METHOD = "/pfl.v1.Peer/"


class PeerStub:
    """The calls of the Peer service. ModelChunks stay bytes: the codec reads and writes them."""

    def __init__(self, channel: Any) -> None:
        replies = {"SendModel": pb.Receipt.FromString, "EvaluateModel": pb.Score.FromString}
        requests: dict[str, Any] = {
            "GetHead": pb.HeadRequest,
            "GetModel": pb.ModelRequest,
            "GetPredictions": pb.PredictionsRequest,
        }
        # On the wire, a unary request equals a stream of one message; gRPC needs fewer batches for the former.
        self.push_one = {
            call: channel.unary_unary(METHOD + call, response_deserializer=reply)
            for call, reply in replies.items()
        }
        self.push_stream = {
            call: channel.stream_unary(METHOD + call, response_deserializer=reply)
            for call, reply in replies.items()
        }
        self.pull = {
            call: channel.unary_stream(METHOD + call, request_serializer=request.SerializeToString)
            for call, request in requests.items()
        }
        self.offset = channel.unary_unary(
            METHOD + "GetOffset",
            request_serializer=pb.OffsetRequest.SerializeToString,
            response_deserializer=pb.Offset.FromString,
        )
        self.status = channel.unary_unary(
            METHOD + "GetStatus",
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.Status.FromString,
        )
        self.history = channel.unary_unary(
            METHOD + "GetHistory",
            request_serializer=pb.HistoryRequest.SerializeToString,
            response_deserializer=pb.History.FromString,
        )
