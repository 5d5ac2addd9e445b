"""The Vercel AI SDK: chats of `useChat`, whose messages are turns."""

from __future__ import annotations

from fastapi import APIRouter

from smolsessions.web.dialects.ai_sdk.chat import chat_routes
from smolsessions.web.dialects.gateway import Gateway


def routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/ai-sdk")
    router.include_router(chat_routes(gateway))
    return router
