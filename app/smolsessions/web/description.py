"""The OpenAPI document: the framework's, with names, tags, headers and shared answers added."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from smolsessions.web import problems
from smolsessions.web.links import root_path
from smolsessions.web.views import event_schemas

DESCRIPTION = (
    "Errors are `application/problem+json` with a stable `code`. "
    "Fields, codes, words and event types may be added, so a client ignores those that it does not know."
)
LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
TAGS = {
    "turns": "Messages to agents, and everything that an agent does until it answers.",
    "conversations": "Conversations with their steps and images.",
    "memory": "The memory of a conversation: prompts, prunes, rollbacks, forks and documents.",
    "agents": "The agents of the service.",
    "health": "Health and metrics of one process. No API key is needed.",
}
HEADERS = {
    "Allow": ("Methods that the path takes.", "string", "GET, POST"),
    "ETag": ("Version of the conversation, for `If-Match`.", "string", '"9b2f0c41d6a85e7391c4f0b28d67ae53"'),
    "Location": ("Address of the turn or conversation.", "string", "/conversations/f3a1/turns/1"),
    "Preference-Applied": ("Preferences of `Prefer` that were applied.", "string", "respond-async, wait=10"),
    "WWW-Authenticate": ("`Bearer`: send an API key.", "string", "Bearer"),
    "Retry-After": ("Seconds until a retry makes sense.", "integer", 2),
}


def operation_id(route: APIRoute) -> str:
    """Return the route's name in camel case: that of `create_turn` is `createTurn`."""
    return re.sub("_(.)", lambda found: found[1].upper(), route.name)


def describe(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary="Stateful smolagents conversations behind HTTP.",
        description=DESCRIPTION,
        license_info=LICENSE,
        servers=[{"url": root_path.get() or "/", "description": "The service that serves this document."}],
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        routes=app.routes,
    )
    components = document["components"]
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors, which no route returns
        components["schemas"].pop(name, None)
    components["schemas"].update(event_schemas() | problems.schemas())
    components["responses"] = problems.described()
    components["headers"] = {
        name: {"description": text, "schema": {"type": kind}, "example": example}
        for name, (text, kind, example) in HEADERS.items()
    }
    components["parameters"] = {}
    operations = [(path, operation) for path, each in document["paths"].items() for operation in each.values()]
    for path, operation in operations:
        operation["summary"] = re.split(r"\.(?:\s|$)", operation["description"])[0]
        # A service without API keys needs none, and health never needs one.
        operation["security"] = [*operation["security"], {}] if "security" in operation else []
        for status in filter(problems.is_error, operation["responses"]):
            operation["responses"][status] = {"$ref": f"#/components/responses/{problems.name_of(status)}"}
        parameters = operation.get("parameters", [])
        of_path = [each for each in parameters if each["in"] == "path"]
        of_path.sort(key=lambda each: path.index(f"{{{each['name']}"))
        parameters[:] = of_path + [each for each in parameters if each["in"] != "path"]
        for place, parameter in enumerate(parameters):
            parameter["schema"].pop("description", None)
            if place < len(of_path):
                name = parameter["name"]
                if name in {"name", "path"}:  # of an agent, an image, a file
                    name = f"{path.split('/')[-2].rstrip('s')}_{name}"
                components["parameters"][name] = parameter
                parameters[place] = {"$ref": f"#/components/parameters/{name}"}
    _drop_titles([document["paths"], components["schemas"]])
    # `tests/support/examples.py` recorded these requests and answers.
    recorded = json.loads(files("smolsessions.web").joinpath("examples.json").read_text("utf-8"))
    for _, operation in operations:
        name = operation["operationId"]
        if name in recorded["requests"]:
            for content in operation["requestBody"]["content"].values():
                content["example"] = recorded["requests"][name]
        for place, example in recorded["answers"].get(name, {}).items():
            status, _, kind = place.partition(" ")
            operation["responses"][status]["content"][kind]["example"] = example
    for status, example in recorded["problems"].items():
        response = components["responses"][problems.name_of(status)]
        response["content"]["application/problem+json"]["example"] = example
    return document


def _drop_titles(node: Any) -> None:
    """Drop the titles, which repeat the fields' names."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            _drop_titles(each)
