"""Real clients of other projects, connected to a service of a test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
from playwright._impl._driver import compute_driver_executable

from tests.support.data import FOLDER
from tests.support.debian import skip
from tests.support.service import Service
from tests.support.waiting import PATIENCE_S
from tools.node_programs import NoNodeError, programs


def openai_of(service: Service, **options: Any) -> openai.OpenAI:
    url = f"{str(service.client.base_url).rstrip('/')}/openai/v1"
    return openai.OpenAI(base_url=url, api_key="any", timeout=PATIENCE_S, max_retries=0, **options)


@contextmanager
def node_program(service: Service, name: str, path: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program of the tests' data with the packages of npm. It is Playwright's Node, which is new enough."""
    try:
        folder = programs().parent.parent
    except NoNodeError as error:
        skip(str(error))
    program = folder / "node_modules" / f".{name}"  # beside the packages that it imports
    program.write_text((FOLDER / name).read_text())
    node, _ = compute_driver_executable()
    command = [node, str(program), f"{str(service.client.base_url).rstrip('/')}{path}", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
