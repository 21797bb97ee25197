"""Frames: whatever is sent comes out again, however the stream is cut; nonsense is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import FrameError
from slurmmesh.wire.frames import HEADER, MAX_RANKS, MAX_SIZE, SHARED, Frame, FrameDecoder, Kind

frames = st.builds(
    Frame,
    kind=st.sampled_from(list(Kind)),
    body=st.binary(max_size=200),
    buffers=st.lists(st.binary(max_size=300), max_size=4),
    call=st.integers(0, 2**64 - 1),
    mesh=st.integers(0, 2**32 - 1),
    actor=st.integers(0, 2**32 - 1),
    ranks=st.lists(st.integers(0, 2**32 - 1), max_size=5),
    flags=st.integers(0, 31),
)


def stream_of(sent: list[Frame]) -> bytes:
    return b"".join(bytes(part) for frame in sent for part in frame.parts())


def plain(frame: Frame) -> tuple[object, ...]:
    return (
        frame.kind,
        bytes(frame.body),
        [bytes(buffer) for buffer in frame.buffers],
        frame.call,
        frame.mesh,
        frame.actor,
        list(frame.ranks),
        frame.flags,
    )


@given(st.lists(frames, max_size=4), st.data())
def test_any_cut_of_the_stream_gives_the_frames_back(sent: list[Frame], data: st.DataObject):
    stream = stream_of(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
    assert [plain(frame) for frame in received] == [plain(frame) for frame in sent]
    assert decoder.idle


@given(frames, st.binary(max_size=40))
def test_the_quick_way_gives_what_the_long_one_does_or_leaves_it_to_that(sent: Frame, more: bytes):
    received = []
    for stream in (stream_of([sent]), stream_of([sent]) + more):
        decoder = FrameDecoder()
        assert decoder.at_rest is decoder.incoming
        decoder.incoming.append((stream, [], 0, None))
        assert decoder.at_rest is None
        frame = decoder.whole()
        if frame is None:
            frame = next(decoder.feed())
        else:
            assert not sent.buffers
            assert not sent.flags & SHARED
            decoder.drop()
            assert decoder.at_rest is not None
        received.append(plain(frame))
    assert received == [plain(sent), plain(sent)]


@given(st.integers(1, 200_000), st.integers(1, 60))
def test_large_buffers_are_filled_in_place(size: int, pieces: int):
    chunk = -(-size // pieces)
    payload = bytes(range(256)) * (size // 256 + 1)
    frame = Frame(Kind.RESULT, b"body", [payload[:size]])
    stream = memoryview(stream_of([frame, frame]))
    decoder = FrameDecoder()
    received: list[Frame] = []
    position = 0
    while position < len(stream):
        space = decoder.space()
        take = min(chunk, len(stream) - position)
        if space is None:
            received += decoder.feed(stream[position : position + take])
        else:
            take = min(take, len(space))
            space[:take] = stream[position : position + take]
            decoder.counts.append(take)
            received += decoder.feed()
        position += take
    assert [plain(each) for each in received] == [plain(frame)] * 2


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waits_for_more_but_gives_no_frame(garbage: bytes):
    decoder = FrameDecoder()
    if garbage[:3] == b"SM\x02":
        return
    try:
        assert list(decoder.feed(garbage)) == []
    except FrameError:
        pass
    else:
        assert len(garbage) < HEADER.size


@pytest.mark.parametrize(
    ("field", "value"),
    [("version", 9), ("kind", 99), ("ranks", MAX_RANKS + 1), ("body", MAX_SIZE + 1)],
)
def test_claims_beyond_the_limits_are_refused_before_memory_is_taken(field: str, value: int):
    names = ["version", "kind", "flags", "buffers", "ranks", "call", "mesh", "actor", "body"]
    values = dict(zip(names, [2, 1, 0, 0, 0, 0, 0, 0, 0], strict=True)) | {field: value}
    with pytest.raises(FrameError):
        list(FrameDecoder().feed(HEADER.pack(b"SM", *values.values())))


def test_a_buffer_beyond_the_limit_is_refused():
    header = HEADER.pack(b"SM", 2, 1, 0, 1, 0, 0, 0, 0, 0)
    with pytest.raises(FrameError, match="buffers"):
        list(FrameDecoder().feed(header + struct.pack("<Q", MAX_SIZE + 1)))


@pytest.mark.slow
def test_too_many_buffers_are_refused_at_the_sender():
    with pytest.raises(FrameError):
        Frame(Kind.CALL, b"", [b""] * 70_000).parts()
