"""The Vercel AI SDK: chats of `useChat`, whose messages are turns."""

from smolsessions.web.dialects.ai_sdk.chat import routes

__all__ = ["routes"]
