from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Member(_message.Message):
    __slots__ = ("id", "name", "address", "role", "run", "round", "incarnation", "state", "accuser", "signature", "signed_at", "credential", "reachability", "relays", "offers_relay", "pair_key")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALIVE: _ClassVar[Member.State]
        SUSPECT: _ClassVar[Member.State]
        DEAD: _ClassVar[Member.State]
        LEFT: _ClassVar[Member.State]
    ALIVE: Member.State
    SUSPECT: Member.State
    DEAD: Member.State
    LEFT: Member.State
    class Reachability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Member.Reachability]
        DIRECT: _ClassVar[Member.Reachability]
        RELAYED: _ClassVar[Member.Reachability]
        UNREACHABLE: _ClassVar[Member.Reachability]
    UNKNOWN: Member.Reachability
    DIRECT: Member.Reachability
    RELAYED: Member.Reachability
    UNREACHABLE: Member.Reachability
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACCUSER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIGNED_AT_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    REACHABILITY_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    OFFERS_RELAY_FIELD_NUMBER: _ClassVar[int]
    PAIR_KEY_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    address: str
    role: str
    run: str
    round: int
    incarnation: int
    state: Member.State
    accuser: str
    signature: bytes
    signed_at: int
    credential: bytes
    reachability: Member.Reachability
    relays: _containers.RepeatedScalarFieldContainer[str]
    offers_relay: bool
    pair_key: bytes
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., incarnation: _Optional[int] = ..., state: _Optional[_Union[Member.State, str]] = ..., accuser: _Optional[str] = ..., signature: _Optional[bytes] = ..., signed_at: _Optional[int] = ..., credential: _Optional[bytes] = ..., reachability: _Optional[_Union[Member.Reachability, str]] = ..., relays: _Optional[_Iterable[str]] = ..., offers_relay: _Optional[bool] = ..., pair_key: _Optional[bytes] = ...) -> None: ...

class Packet(_message.Message):
    __slots__ = ("kind", "sequence", "sender", "target", "target_address", "updates", "version")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Packet.Kind]
        PING: _ClassVar[Packet.Kind]
        PING_REQ: _ClassVar[Packet.Kind]
        ACK: _ClassVar[Packet.Kind]
        NACK: _ClassVar[Packet.Kind]
        GOSSIP: _ClassVar[Packet.Kind]
    KIND_UNSPECIFIED: Packet.Kind
    PING: Packet.Kind
    PING_REQ: Packet.Kind
    ACK: Packet.Kind
    NACK: Packet.Kind
    GOSSIP: Packet.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    kind: Packet.Kind
    sequence: int
    sender: Member
    target: str
    target_address: str
    updates: _containers.RepeatedCompositeFieldContainer[Member]
    version: int
    def __init__(self, kind: _Optional[_Union[Packet.Kind, str]] = ..., sequence: _Optional[int] = ..., sender: _Optional[_Union[Member, _Mapping]] = ..., target: _Optional[str] = ..., target_address: _Optional[str] = ..., updates: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("sender", "members")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    sender: Member
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, sender: _Optional[_Union[Member, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("member", "credential")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    member: Member
    credential: bytes
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., credential: _Optional[bytes] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("sender", "members")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    sender: Member
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, sender: _Optional[_Union[Member, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class CredentialsRequest(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CredentialsReply(_message.Message):
    __slots__ = ("credentials",)
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    credentials: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, credentials: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DialBackRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: Member
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...

class DialBackReply(_message.Message):
    __slots__ = ("reached", "reason", "time")
    REACHED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    reached: bool
    reason: str
    time: float
    def __init__(self, reached: _Optional[bool] = ..., reason: _Optional[str] = ..., time: _Optional[float] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: Member
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("self", "members")
    SELF_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    self: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self_, self: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...
