"""Line that classifies connections by the commands sent on them, and resets or silences all of one kind."""

import socket
import struct
from typing import Self

from tests.topology.line import Connection, Line
from tests.topology.node import HOST

AT_ONCE = struct.pack("ii", 1, 0)  # a linger time of zero: closing resets
KINDS = {"commands": {"EVALSHA"}, "messages": {"SSUBSCRIBE"}, "acks": {"EVALSHA", "WAIT"}}
WORDS = {word: f"${len(word)}\r\n{word}\r\n".encode() for word in set.union(*KINDS.values())}
LONGEST_WORD = max(map(len, WORDS.values()))


class Exchange(Line):
    """`with Exchange(port) as exchange:` forwards to that port of this machine."""

    def __init__(self, target_port: int) -> None:
        super().__init__()
        self._target = target_port

    def __enter__(self) -> Self:
        self.open(self._target)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def answered(self, kind: str) -> int:
        return len(self._do(self._of(kind)))

    def reset(self, kind: str) -> int:
        return self._do(self._reset(kind))

    def silence(self, kind: str) -> int:
        """Forward nothing more on the connections of a kind. Return their number."""
        found = self._do(self._of(kind))
        for each in found:
            each.silent = True
        return len(found)

    async def _of(self, kind: str) -> list[Connection]:
        return [each for each in self._connections if each.words == KINDS[kind] and not each.silent]

    async def _reset(self, kind: str) -> int:
        found = await self._of(kind)
        for each in found:
            near: socket.socket = each.writers[0].get_extra_info("socket")
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            each.writers[0].transport.abort()
        return len(found)

    def _hear(self, connection: Connection, data: bytes, *, is_command: bool) -> None:
        if is_command:
            seen = connection.tail + data
            connection.words |= {word for word, packed in WORDS.items() if packed in seen}
            connection.tail = seen[-LONGEST_WORD:]
