"""Whether the store's user may do all that we do: asked of the server at the start, before a turn is half written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from smolsessions.store.scripts.loader import NAMES, script

if TYPE_CHECKING:
    from redis.asyncio import Redis

_CALL = re.compile(r"redis\.call\('([A-Z]+)'")
# One that a server does not know under its name (operators rename commands) is one that we may not use.
_ASK = """
local refused, name = {}, KEYS[1] .. ':rights'
for i, command in ipairs(ARGV) do
  local is_known, is_allowed = pcall(redis.acl_check_cmd, command, name, name, name)
  if not (is_known and is_allowed) then refused[#refused + 1] = command end
end
return refused
"""


async def check_permissions(client: Redis, partition: str) -> None:
    """Raise `NoPermissionError` with the commands that the user of this connection may not run."""
    sha = await client.script_load(_ASK)
    answer: Any = await client.evalsha(sha, 1, partition, *_commands())
    if answer:
        raise NoPermissionError(f"it may not run {', '.join(word.decode() for word in answer)}")


def _commands() -> list[str]:
    """Give what the scripts call: a script is not undone where it is refused in the middle."""
    return sorted({command for name in NAMES for command in _CALL.findall(script(name).source)})
