"""All codes of errors, as pages below /docs/errors and as docs/reference/errors.md."""

from __future__ import annotations

import html
from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from smolsessions.core.errors import FAILURES, STEP_FAILURES, NotFoundError, codes_of_answers
from smolsessions.web.problems import status_of

_HEAD = """# Codes of errors

All codes of refused requests, and of failed and cancelled turns. A `code` is stable. More may come, so a client passes
unknown ones on. Each has a page at `/docs/errors/CODE`, which is the `type` of its problem.

## Answers to requests

`application/problem+json` (RFC 9457): `type`, `title`, `status`, `code`, `detail`, `instance`, and `errors` if fields
are named. `instance` is the request's id, also in the header `X-Request-Id` and in the service's log.

"""
_TURNS = """
## Failed and cancelled turns

`error.code` of a turn with the status `failed` or `cancelled`, in a 200, as the request went well. `error.retryable` is
true if the same message may succeed later.

"""
_STEPS = """
## Steps and calls

`error.code` of a step, of a call's result and of an effect. The agent's model reads the error and goes on, so the turn
may still be `finished`. `agent_error` and `model_error` are used here, too.

"""


def errors_reference() -> str:
    answers = codes_of_answers()
    rows = [f"- `{code}` ({status_of(answers[code]()).value}): {answers[code]().message}" for code in sorted(answers)]
    turns, steps = (
        "\n".join(f"- `{code}`: {each[code]}" for code in sorted(each)) for each in (FAILURES, STEP_FAILURES)
    )
    return _HEAD + "\n".join(rows) + "\n" + _TURNS + turns + "\n" + _STEPS + steps + "\n"


def serve_error_pages(app: FastAPI, headers: Mapping[str, str]) -> None:
    """Serve a page for each code. Needs no API key."""

    @app.get("/docs/errors/{code}", include_in_schema=False)
    async def error_page(code: str) -> HTMLResponse:
        answer, failure = codes_of_answers().get(code), (FAILURES | STEP_FAILURES).get(code)
        if not answer and not failure:
            raise NotFoundError("No error has this code; docs/reference/errors.md lists all.")
        of_answer = [f"Status {status_of(answer()).value}. {answer().message}"] if answer else []
        sentences = [*of_answer, *([f"Of a {'turn' if code in FAILURES else 'step'}: {failure}"] if failure else [])]
        text = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
        return HTMLResponse(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{code}</title><h1>{code}</h1>{text}</html>',
            headers=dict(headers),
        )
