"""The protobuf wire format, read by hand and checked as a protobuf library checks it. Pure: no Django, no clock, no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass

_MAX_VARINT_BYTES = 10
_MAX_DEPTH = 100
_UINT32 = 0xFFFFFFFF
_INT32_MAX = 0x7FFFFFFF


class DecodeError(ValueError):
    """The body is not snappy, or not a WriteRequest. The sender must not send it again."""


@dataclass(frozen=True)
class Message:
    """What a message's fields are: a Message, or one of the words string, varint, fixed64, packed_varint, packed_fixed64."""

    fields: "dict[int, Message | str]"


_SPAN = Message({1: "varint", 2: "varint"})
_LABEL = Message({1: "string", 2: "string"})
_SAMPLE = Message({1: "fixed64", 2: "varint"})
_EXEMPLAR = Message({1: _LABEL, 2: "fixed64", 3: "varint"})
_HISTOGRAM = Message(
    {
        **dict.fromkeys((1, 4, 6, 14, 15), "varint"),
        **dict.fromkeys((2, 3, 5, 7), "fixed64"),
        **dict.fromkeys((8, 11), _SPAN),
        **dict.fromkeys((9, 12), "packed_varint"),
        **dict.fromkeys((10, 13, 16), "packed_fixed64"),
    }
)
_METADATA = Message({1: "varint", 2: "string", 4: "string", 5: "string"})
TIME_SERIES = Message({1: _LABEL, 2: _SAMPLE, 3: _EXEMPLAR, 4: _HISTOGRAM})
WRITE_REQUEST = Message({1: TIME_SERIES, 3: _METADATA})


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position >= end:
            raise DecodeError("truncated number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise DecodeError("a number of more than ten bytes")


def read_tag(data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """(field number, wire type, position after the tag)."""
    start = position
    value, position = read_varint(data, position, end)
    if position - start > 5 or value > _UINT32 or value >> 3 == 0:
        raise DecodeError("not a field tag")
    return value >> 3, value & 7, position


def read_length(data: bytes, position: int, end: int) -> tuple[int, int]:
    """(length, position after it) of a length-delimited field that fits into what is left."""
    start = position
    length, position = read_varint(data, position, end)
    if position - start > 5 or length > _INT32_MAX or length > end - position:
        raise DecodeError("truncated field")
    return length, position


def skip_field(data: bytes, position: int, end: int, message: Message, number: int, wire: int, depth: int = 0) -> int:
    """Check one field's content. Returns the position after it. A known field on another wire type is skipped like an unknown one."""
    kind = message.fields.get(number)
    if wire == 0:
        return read_varint(data, position, end)[1]
    if wire == 1 or wire == 5:
        position += 8 if wire == 1 else 4
        if position > end:
            raise DecodeError("truncated field")
        return position
    if wire == 2:
        length, position = read_length(data, position, end)
        _check_content(data, position, position + length, kind, depth)
        return position + length
    if wire == 3:
        return _skip_group(data, position, end, number, depth + 1)
    raise DecodeError("not a wire type")


def _check_content(data: bytes, position: int, end: int, kind: "Message | str | None", depth: int) -> None:
    if isinstance(kind, Message):
        check_message(data, position, end, kind, depth + 1)
    elif kind == "string":
        try:
            data[position:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError("a text that is not UTF-8") from error
    elif kind == "packed_varint":
        while position < end:
            position = read_varint(data, position, end)[1]
    elif kind == "packed_fixed64" and (end - position) % 8:
        raise DecodeError("truncated packed field")


def _skip_group(data: bytes, position: int, end: int, number: int, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise DecodeError("nested too deeply")
    while True:
        inner, wire, position = read_tag(data, position, end)
        if wire == 4:
            if inner != number:
                raise DecodeError("a group ends that did not begin")
            return position
        position = skip_field(data, position, end, _UNKNOWN, inner, wire, depth)


_UNKNOWN = Message({})


def check_message(data: bytes, position: int, end: int, message: Message, depth: int = 0) -> None:
    """Raise DecodeError where a protobuf library would on these bytes as `message`."""
    if depth > _MAX_DEPTH:
        raise DecodeError("nested too deeply")
    while position < end:
        number, wire, position = read_tag(data, position, end)
        position = skip_field(data, position, end, message, number, wire, depth)


def iterate_fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, end of its content) of a message that was checked."""
    while position < end:
        number, wire, position = read_tag(data, position, end)
        if wire == 2:
            length, position = read_length(data, position, end)
            yield number, wire, position, position + length
            position += length
        else:
            after = skip_field(data, position, end, _UNKNOWN, number, wire)
            yield number, wire, position, after
            position = after
