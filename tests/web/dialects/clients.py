"""Real clients of other projects, connected to a service of a test."""

from typing import Any

import openai

from tests.support.service import Service
from tests.support.waiting import PATIENCE_S


def openai_of(service: Service, **options: Any) -> openai.OpenAI:
    url = f"{str(service.client.base_url).rstrip('/')}/openai/v1"
    return openai.OpenAI(base_url=url, api_key="any", timeout=PATIENCE_S, max_retries=0, **options)
