from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ListenRequest(_message.Message):
    __slots__ = ("site",)
    SITE_FIELD_NUMBER: _ClassVar[int]
    site: str
    def __init__(self, site: _Optional[str] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("ticket", "caller")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ticket: str
    caller: str
    def __init__(self, ticket: _Optional[str] = ..., caller: _Optional[str] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("caller", "site")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    caller: str
    site: str
    def __init__(self, caller: _Optional[str] = ..., site: _Optional[str] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: str
    def __init__(self, ticket: _Optional[str] = ...) -> None: ...
