from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Part(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PART_UNSPECIFIED: _ClassVar[Part]
    PART_MODEL: _ClassVar[Part]
    PART_CORE: _ClassVar[Part]
    PART_HEAD: _ClassVar[Part]
    PART_PREDICTIONS: _ClassVar[Part]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_FP32: _ClassVar[Encoding]
    ENCODING_FP16: _ClassVar[Encoding]
    ENCODING_INT8: _ClassVar[Encoding]
PART_UNSPECIFIED: Part
PART_MODEL: Part
PART_CORE: Part
PART_HEAD: Part
PART_PREDICTIONS: Part
ENCODING_UNSPECIFIED: Encoding
ENCODING_FP32: Encoding
ENCODING_FP16: Encoding
ENCODING_INT8: Encoding

class ModelChunk(_message.Message):
    __slots__ = ("header", "data", "trailer")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    header: Header
    data: bytes
    trailer: Trailer
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., data: _Optional[bytes] = ..., trailer: _Optional[_Union[Trailer, _Mapping]] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("name", "part", "layout", "numbers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    part: Part
    layout: str
    numbers: int
    def __init__(self, name: _Optional[str] = ..., part: _Optional[_Union[Part, str]] = ..., layout: _Optional[str] = ..., numbers: _Optional[int] = ...) -> None: ...

class Coordinates(_message.Message):
    __slots__ = ("count", "runs", "index_size", "bitmap", "same")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    INDEX_SIZE_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    count: int
    runs: _containers.RepeatedScalarFieldContainer[int]
    index_size: int
    bitmap: bool
    same: bool
    def __init__(self, count: _Optional[int] = ..., runs: _Optional[_Iterable[int]] = ..., index_size: _Optional[int] = ..., bitmap: _Optional[bool] = ..., same: _Optional[bool] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("version", "sender", "run", "round", "tag", "samples", "notes", "encoding", "zstd", "layout", "part", "numbers", "encoded_size", "padding", "content", "offset", "present", "vectors")
    class NotesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    ZSTD_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ENCODED_SIZE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    version: int
    sender: str
    run: str
    round: int
    tag: int
    samples: int
    notes: _containers.ScalarMap[str, float]
    encoding: Encoding
    zstd: bool
    layout: str
    part: Part
    numbers: int
    encoded_size: int
    padding: bytes
    content: bytes
    offset: int
    present: Coordinates
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    def __init__(self, version: _Optional[int] = ..., sender: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., tag: _Optional[int] = ..., samples: _Optional[int] = ..., notes: _Optional[_Mapping[str, float]] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., zstd: _Optional[bool] = ..., layout: _Optional[str] = ..., part: _Optional[_Union[Part, str]] = ..., numbers: _Optional[int] = ..., encoded_size: _Optional[int] = ..., padding: _Optional[bytes] = ..., content: _Optional[bytes] = ..., offset: _Optional[int] = ..., present: _Optional[_Union[Coordinates, _Mapping]] = ..., vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ...) -> None: ...

class Trailer(_message.Message):
    __slots__ = ("checksum",)
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    checksum: int
    def __init__(self, checksum: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class OffsetRequest(_message.Message):
    __slots__ = ("sender", "run", "content")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    sender: str
    run: str
    content: bytes
    def __init__(self, sender: _Optional[str] = ..., run: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class Offset(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("loss", "accuracy", "samples", "score")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    loss: float
    accuracy: float
    samples: int
    score: float
    def __init__(self, loss: _Optional[float] = ..., accuracy: _Optional[float] = ..., samples: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class HeadRequest(_message.Message):
    __slots__ = ("sender", "run", "layout", "whole")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    sender: str
    run: str
    layout: str
    whole: bool
    def __init__(self, sender: _Optional[str] = ..., run: _Optional[str] = ..., layout: _Optional[str] = ..., whole: _Optional[bool] = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__ = ("sender", "run", "layout", "part", "content", "offset", "whole")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    sender: str
    run: str
    layout: str
    part: Part
    content: bytes
    offset: int
    whole: bool
    def __init__(self, sender: _Optional[str] = ..., run: _Optional[str] = ..., layout: _Optional[str] = ..., part: _Optional[_Union[Part, str]] = ..., content: _Optional[bytes] = ..., offset: _Optional[int] = ..., whole: _Optional[bool] = ...) -> None: ...

class PredictionsRequest(_message.Message):
    __slots__ = ("sender", "run", "layout")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    sender: str
    run: str
    layout: str
    def __init__(self, sender: _Optional[str] = ..., run: _Optional[str] = ..., layout: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("id", "name", "role", "run", "address", "state", "round", "rounds", "policy", "task", "uptime", "json")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    role: str
    run: str
    address: str
    state: str
    round: int
    rounds: int
    policy: str
    task: str
    uptime: float
    json: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., run: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., policy: _Optional[str] = ..., task: _Optional[str] = ..., uptime: _Optional[float] = ..., json: _Optional[str] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadReply(_message.Message):
    __slots__ = ("samples", "error")
    class SamplesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.ScalarMap[str, int]
    error: str
    def __init__(self, samples: _Optional[_Mapping[str, int]] = ..., error: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("follow", "after", "kinds", "last")
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    follow: bool
    after: int
    kinds: _containers.RepeatedScalarFieldContainer[str]
    last: int
    def __init__(self, follow: _Optional[bool] = ..., after: _Optional[int] = ..., kinds: _Optional[_Iterable[str]] = ..., last: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "time", "kind", "json")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: float
    kind: str
    json: str
    def __init__(self, number: _Optional[int] = ..., time: _Optional[float] = ..., kind: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("points",)
    POINTS_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[Point]
    def __init__(self, points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("round", "time", "figures")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    round: int
    time: float
    figures: _containers.ScalarMap[str, float]
    def __init__(self, round: _Optional[int] = ..., time: _Optional[float] = ..., figures: _Optional[_Mapping[str, float]] = ...) -> None: ...
