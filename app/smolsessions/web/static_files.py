"""The page and the API's documentation, served without any address outside the service."""

from __future__ import annotations

import importlib.resources
import re
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles

if TYPE_CHECKING:
    from fastapi import FastAPI, Response

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # the browser revalidates each time, so that it notices a new release
}


def serve_docs(app: FastAPI) -> None:
    scripts = importlib.resources.files("fastapi_offline").joinpath("static")
    app.mount("/docs/static", _Files(directory=str(scripts)), name="docs-static")
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="smolsessions",
        swagger_js_url="/docs/static/swagger-ui-bundle.js",
        swagger_css_url="/docs/static/swagger-ui.css",
        swagger_favicon_url="/docs/static/favicon.png",
    )
    inline = re.findall(rb"<script>(.*?)</script>", bytes(page.body), re.DOTALL)
    digests = " ".join(f"'sha256-{b64encode(sha256(script).digest()).decode()}'" for script in inline)
    headers = HEADERS | {"Content-Security-Policy": POLICY.replace("script-src", f"script-src {digests}")}

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page.body, headers=headers)


def serve_page(app: FastAPI) -> None:
    folder = str(importlib.resources.files("smolsessions.web").joinpath("page"))
    app.mount("/page", _Files(directory=folder), name="page")

    @app.get("/", include_in_schema=False)
    async def front() -> FileResponse:
        return FileResponse(f"{folder}/index.html", media_type="text/html", headers=HEADERS)


class _Files(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response
