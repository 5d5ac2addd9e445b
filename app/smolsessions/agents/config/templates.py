"""Prompt templates: smolagents' own, and those that an operator or a saved agent has."""

from __future__ import annotations

import functools
import importlib.resources
from pathlib import Path
from typing import Any, cast

import jinja2
import yaml
from smolagents import PromptTemplates
from smolagents.agents import EMPTY_PROMPT_TEMPLATES

from smolsessions.core.errors import StartError
from smolsessions.core.files import read_text


@functools.cache
def smolagents_templates(name: str) -> PromptTemplates:
    """Return smolagents' templates of this name. All agents share them, as parsing takes 2.3 ms."""
    text = importlib.resources.files("smolagents.prompts").joinpath(f"{name}.yaml").read_text("utf-8")
    templates: PromptTemplates = yaml.safe_load(text)
    return templates


@functools.cache
def templates_of(path: Path) -> PromptTemplates:
    """Return the templates of a YAML file. Raises `StartError`."""
    try:
        templates = yaml.safe_load(read_text(path, "the file"))
    except (yaml.YAMLError, RecursionError):
        raise StartError("is no YAML; fix it") from None
    return complete_templates(templates, f"{path.name} ")


def complete_templates(templates: Any, place: str = "") -> PromptTemplates:
    """Return templates that have all texts that smolagents reads. Raises `StartError`."""
    found = templates if isinstance(templates, dict) else {}
    missing = [name for name in EMPTY_PROMPT_TEMPLATES if name not in found]
    for name, texts in EMPTY_PROMPT_TEMPLATES.items():
        if isinstance(texts, dict) and name in found:
            group = found[name] if isinstance(found[name], dict) else {}
            missing += [f"{name}.{text}" for text in texts if not isinstance(group.get(text), str)]
    if missing:
        raise StartError(f"{place}lacks texts of smolagents' templates: {', '.join(missing)}; add them")
    for name, texts in found.items():
        for key, text in texts.items() if isinstance(texts, dict) else [("", texts)]:
            check_jinja(f"{place}{name}{key and '.'}{key}", text)
    return cast("PromptTemplates", found)


def check_jinja(name: str, text: Any) -> None:
    try:
        jinja2.Environment(autoescape=False).parse(str(text))  # noqa: S701 - a prompt is no HTML
    except jinja2.TemplateSyntaxError as error:
        problem = f"{error.message or ''}".rstrip(".")
        raise StartError(f"{name}, line {error.lineno} of this text: no Jinja ({problem}); fix it there") from None
