"""The HTTP applications and their OpenAPI document."""

from __future__ import annotations

import importlib.resources
import re
from base64 import b64encode
from collections.abc import Collection
from functools import cache
from hashlib import sha256
from typing import Any

import yaml
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from smolsessions import __version__
from smolsessions.core.conversations import Conversations
from smolsessions.core.errors import ShuttingDownError
from smolsessions.core.json_data import MAX_OBJECT_BYTES
from smolsessions.core.turns import Turns
from smolsessions.web import problems
from smolsessions.web.auth import Authenticator
from smolsessions.web.description import describe, operation_id
from smolsessions.web.dialects import serve_dialects
from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.links import link, root_path
from smolsessions.web.metrics import MetricsText
from smolsessions.web.middleware import RequestChecks
from smolsessions.web.problems import serve_error_pages
from smolsessions.web.routes.common import Limits, answer
from smolsessions.web.routes.conversations import agent_routes, conversation_routes, file_routes, memory_routes
from smolsessions.web.routes.turns import NewTurns, turn_routes
from smolsessions.web.sse import EventStreams
from smolsessions.wire.problems import Health

MAX_CHAR_BYTES = 12  # of one character in JSON: two escapes
MAX_HEALTH_BODY_BYTES = 64 * 1024  # of a request to a worker, which answers it with 404 or 405
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
METRICS = {
    "description": "Metrics in the Prometheus text format.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # the browser revalidates each time, so that it notices a new release
}


class _Application(FastAPI):
    """FastAPI that begins with the middleware added to it. The four frames around it cost 2 % of a turn."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        if self.middleware_stack is None:
            first: Any = self.build_middleware_stack()
            while not isinstance(first, CORSMiddleware | RequestChecks):
                first = first.app
            self.middleware_stack = first
        scope["app"] = self
        return self.middleware_stack(scope, receive, send)


def create_app(
    turns: Turns,
    conversations: Conversations,
    *,
    authenticator: Authenticator,
    metrics_text: MetricsText,
    limits: Limits,
    dialects: Collection[str] = (),
) -> FastAPI:
    """Return the application of a process that serves the API, and `dialects` of other clients."""
    root_path.set(limits.root_path)
    app = _Application(
        title="smolsessions",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name the host and the scheme behind the proxy
        generate_unique_id_function=operation_id,
    )
    app.state.draining = False
    app.state.authenticator = authenticator
    app.state.streams = streams = EventStreams(turns, limits.send_timeout_s)
    new_turns = NewTurns(turns, limits, streams)
    app.include_router(turn_routes(new_turns, turns, limits, streams))
    app.include_router(conversation_routes(conversations))
    app.include_router(file_routes(conversations))
    app.include_router(memory_routes(conversations))
    app.include_router(agent_routes(conversations, limits))
    app.include_router(health_routes(metrics_text, authenticator))
    serve_dialects(app, Gateway(turns, conversations, new_turns, streams), dialects)
    serve_docs(app)
    serve_page(app)
    app.add_middleware(
        RequestChecks,
        authenticator=authenticator,
        prefix=limits.root_path,
        answer_at_once=new_turns.answer_at_once,
        hosts={limits.host, *limits.allowed_hosts} if authenticator.is_open else None,
        origins=limits.cors_origins,
        max_body_bytes=limits.max_body_bytes,
        max_text_bytes=limits.max_message_chars * MAX_CHAR_BYTES + 2 * MAX_OBJECT_BYTES,
    )
    problems.install(app)
    if limits.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=limits.cors_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],  # each library of another protocol sends headers of its own
            expose_headers=["ETag", "Location", "Preference-Applied", "Retry-After", "X-Request-Id"],
        )
    app.openapi = cache(lambda: describe(app))  # type: ignore[method-assign]
    return app


def create_health_app(metrics_text: MetricsText, authenticator: Authenticator, host: str) -> FastAPI:
    """Return the application of a worker process: health and metrics."""
    app = FastAPI(title="smolsessions", version=__version__, openapi_url=None)
    app.state.draining = False
    app.include_router(health_routes(metrics_text, authenticator))
    app.add_middleware(
        RequestChecks,
        authenticator=authenticator,
        hosts={host} if authenticator.loopback else None,  # it holds no content
        origins=(),
        max_body_bytes=MAX_HEALTH_BODY_BYTES,
        max_text_bytes=MAX_HEALTH_BODY_BYTES,
    )
    problems.install(app, problems.OF_A_WORKER)
    return app


def health_routes(metrics_text: MetricsText, authenticator: Authenticator) -> APIRouter:
    """Return the routes that need no API key. Their answers hold no content."""
    router = APIRouter(tags=["health"])

    @router.get("/livez", responses=problems.open_responses(Health))
    async def get_liveness() -> Response:
        """Return 200 while the process runs."""
        return answer({"status": "ok"})

    @router.get("/readyz", responses=problems.open_responses(Health, 503))
    async def get_readiness(request: Request) -> Response:
        """Return 200 while the process accepts requests, 503 during shutdown."""
        if request.app.state.draining:
            raise ShuttingDownError
        return answer({"status": "stale_keys" if authenticator.is_stale else "ok"})

    @router.get("/metrics", response_class=Response, responses={200: METRICS, **problems.open_responses(None, 503)})
    async def get_metrics() -> Response:
        """Return metrics in the Prometheus text format."""
        return Response(await metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def serve_docs(app: FastAPI) -> None:
    scripts = importlib.resources.files("fastapi_offline").joinpath("static")
    app.mount("/docs/static", _Files(directory=str(scripts)), name="docs-static")
    page = get_swagger_ui_html(
        openapi_url=link("/openapi.json"),
        title="smolsessions",
        swagger_js_url=link("/docs/static/swagger-ui-bundle.js"),
        swagger_css_url=link("/docs/static/swagger-ui.css"),
        swagger_favicon_url=link("/docs/static/favicon.png"),
    )
    inline = re.findall(rb"<script>(.*?)</script>", bytes(page.body), re.DOTALL)
    digests = " ".join(f"'sha256-{b64encode(sha256(script).digest()).decode()}'" for script in inline)
    headers = HEADERS | {"Content-Security-Policy": POLICY.replace("script-src", f"script-src {digests}")}

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page.body, headers=headers)

    serve_error_pages(app, HEADERS)


def serve_page(app: FastAPI) -> None:
    folder = importlib.resources.files("smolsessions.web").joinpath("page")
    app.mount("/page", _Files(directory=str(folder)), name="page")
    html = re.sub(r'(?<==")(?=/)', root_path.get(), folder.joinpath("index.html").read_text("utf-8"))

    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        return HTMLResponse(html, headers=HEADERS)


class _Files(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def schema_yaml() -> str:
    """Return the OpenAPI document as YAML. It depends on no setting."""
    unused: Any = None
    app = create_app(
        unused,
        unused,
        authenticator=Authenticator(None, loopback=True),
        metrics_text=unused,
        limits=Limits("", 0, 0, 0, 0, 0, 0, 0, 0, 0),
    )
    return yaml.safe_dump(app.openapi(), sort_keys=False, allow_unicode=True, width=120)
