# requires: pyzmq==27.3.0 msgspec==0.22.0
"""KV events, read with ZeroMQ's own library and msgspec, in the form of vLLM's definitions."""

import time
from typing import Any, Optional, Union

import msgspec
import zmq
from support import *


def definitions(array_like):
    """The types of vLLM's messages: events are maps since June 2026, and were lists before."""

    class Event(msgspec.Struct, array_like=array_like, omit_defaults=True, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[Union[bytes, int]]
        parent_block_hash: Optional[Union[bytes, int]]
        token_ids: list[int]
        block_size: int
        lora_id: Optional[int]
        medium: Optional[str]
        lora_name: Optional[str]
        extra_keys: Optional[list[Optional[tuple[Any, ...]]]] = None

    class BlockRemoved(Event):
        block_hashes: list[Union[bytes, int]]
        medium: Optional[str]

    class AllBlocksCleared(Event):
        pass

    class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
        data_parallel_rank: Optional[int] = None

    return BlockStored, BlockRemoved, AllBlocksCleared, msgspec.msgpack.Decoder(KVEventBatch)


def replay(context, endpoint, start):
    """All messages that the server has kept from a number on."""
    with context.socket(zmq.DEALER) as socket:
        socket.connect(endpoint)
        socket.send_multipart([b"", start.to_bytes(8, "big")])
        found = []
        while True:
            assert socket.poll(20_000), "no answer to a replay"
            empty, sequence, payload = socket.recv_multipart()
            equal(empty, b"")
            sequence = int.from_bytes(sequence, "big", signed=True)
            if sequence == -1:
                equal(payload, b"")
                return found
            found.append((sequence, payload))


def receive(socket, wanted):
    """Messages until one has an event that `wanted` takes: their numbers, contents, and events."""
    messages = []
    while True:
        assert socket.poll(20_000), "no message"
        topic, sequence, payload = socket.recv_multipart()
        messages.append((topic, int.from_bytes(sequence, "big"), payload))
        if wanted(payload):
            return messages


def check(url, endpoint, replay_endpoint, topic, array_like):
    Stored, Removed, Cleared, decoder = definitions(array_like)
    salt = f"tenant-{time.time_ns()}"
    prompt = list(range(100, 170))

    def ask():
        post("/v1/completions",
             {"model": "demo-lm", "prompt": prompt, "max_tokens": 1, "cache_salt": salt}, url)

    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(endpoint)
        socket.subscribe("kv@")
        # A request that is sent before the subscription has arrived is in the replay alone.
        past = replay(context, replay_endpoint, 0)
        equal([sequence for sequence, _ in past], list(range(len(past))))
        first = decoder.decode(past[0][1])
        assert isinstance(first.events[0], Cleared), first
        assert abs(first.ts - time.time()) < 3600 and first.data_parallel_rank == 0
        time.sleep(1)
        ask()
        stored = lambda payload: any(
            isinstance(event, Stored) for event in decoder.decode(payload).events)
        messages = receive(socket, stored)
        equal({name for name, _, _ in messages}, {topic})
        numbers = [sequence for _, sequence, _ in messages]
        equal(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
        event = next(e for e in decoder.decode(messages[-1][2]).events if isinstance(e, Stored))
        equal(event.parent_block_hash, None)
        equal(event.block_size, 16)
        equal(event.token_ids[:64], prompt[:64])
        equal(len(event.block_hashes) * event.block_size, len(event.token_ids))
        assert all(isinstance(h, int) for h in event.block_hashes)
        equal(event.extra_keys[0], (salt,))
        assert all(keys is None for keys in event.extra_keys[1:])
        equal((event.medium, event.lora_id, event.lora_name), ("GPU", None, None))
        # The same bytes come again on request, and nothing behind the last one.
        again = replay(context, replay_endpoint, numbers[0])
        equal(again[: len(messages)], [(n, payload) for _, n, payload in messages])
        equal(replay(context, replay_endpoint, 1 << 40), [])
        # REQ takes one reply, as vLLM's example does.
        with context.socket(zmq.REQ) as request:
            request.connect(replay_endpoint)
            request.send((0).to_bytes(8, "big"))
            assert request.poll(20_000)
            sequence, payload = request.recv_multipart()
            equal((int.from_bytes(sequence, "big"), payload), past[0])


check(FULL_URL, os.environ["PRELUDE_KV_MAPS"], os.environ["PRELUDE_KV_MAPS_REPLAY"],
      b"kv@full@demo-lm", array_like=False)
check(URL, os.environ["PRELUDE_KV_ARRAYS"], os.environ["PRELUDE_KV_ARRAYS_REPLAY"],
      b"kv@demo@demo-lm", array_like=True)
