"""The web UI at `/`: its files, what it shows, and the documentation of this release.

The page has no script, style or picture of another host, and its policy forbids them. What it shows comes from topics
and files, so it is put into the page as text only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aiohttp.web import Application, HTTPBadRequest, HTTPNotFound, Request, Response, json_response

from app.web.overview import Overview
from transforms.text import printable

_INDEX = "index.html"
_TYPES: Mapping[str, str] = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".md": "text/plain",  # browsers show it, and would save text/markdown
}
# Nothing but what this worker serves; no frame around the page, no form, no other base for its links.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # another release may answer here tomorrow
}
_MOST_DIGITS = 15
_STATIC = Path(__file__).parent / "static"
# `docs/` is in the directory of `app/`, in the checkout and in the wheel.
_DOCS = Path(__file__).parents[2] / "docs"


class Dashboard:
    """The page and its parts. All files are read once, when it is made."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._files = {path.name: path.read_bytes() for path in _STATIC.iterdir()}
        self._docs = {path.name: path.read_bytes() for path in _DOCS.glob("*.md")}

    def add_to(self, web: Application) -> None:
        """Adds the paths of the page's parts; `/` itself belongs to the REST API, which asks for `index`."""
        web.router.add_get("/overview", self._document)
        web.router.add_get("/static/{name}", self._part)
        web.router.add_get("/docs/{name}", self._page_of_docs)

    def index(self) -> Response:
        """The page."""
        return _response(_INDEX, self._files[_INDEX])

    async def _document(self, request: Request) -> Response:
        after = _number(request.query.get("after", "0"), "after", "the number of a sample")
        opened = filter(None, request.query.get("open", "").split(","))
        document = self._overview.document(
            after, frozenset(_number(each, "open", "the position of a pipeline") for each in opened)
        )
        return json_response(document, headers={"Cache-Control": "no-store"})

    async def _part(self, request: Request) -> Response:
        return _file(self._files, request)

    async def _page_of_docs(self, request: Request) -> Response:
        return _file(self._docs, request)


def _number(text: str, parameter: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise HTTPBadRequest(text=f"{parameter}={printable(text)}: is not {what}\n")
    return int(text)


def _file(known: Mapping[str, bytes], request: Request) -> Response:
    name = request.match_info["name"]
    if name not in known:
        raise HTTPNotFound(text=f"{printable(request.path)} is not here\n")
    return _response(name, known[name])


def _response(name: str, body: bytes) -> Response:
    return Response(body=body, content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=_HEADERS)
