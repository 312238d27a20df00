"""The explorer's server: one page, its assets, questions as JSON, dropped files. It listens on the loopback only.

Who asks must know the token, name this host and, where a browser says it, come from this page: another user of the
machine, a page of another site and a name that was pointed at 127.0.0.1 meanwhile (DNS rebinding) are refused alike.
Questions go to workers (`worker.py`), so that no input can hold up or end the server. They wait for their turn, as many
as come: nobody with the token is refused because others are connected.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilewright.errors import UsageError
from tilewright.explore.worker import QUESTIONS, Worker
from tilewright.render.markup import escape, shared_asset

MOST_QUESTION = 1 << 20
MOST_DROPPED = 64 << 20
_MOST_FILES = 8
_SECONDS_SILENT = 5.0  # the longest that a connection may stay without a whole request's head, or more of a body
_MOST_SILENT = 256  # more such connections than that, and the oldest is dropped: they are few files, and no memory
_MOST_ASSEMBLY = 200_000
_KINDS = {".js": "text/javascript", ".css": "text/css"}
_ASSET = re.compile(r"[a-z]+\.(?:js|css)")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_REPORT_POLICY = "sandbox allow-scripts allow-popups; frame-ancestors 'none'"  # the page has a policy of its own
_GUARDED = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Guard:
    """Refuses with 403 whoever is not this page, and puts the same headers on every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        why = self.refused(Request(scope))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ({"Content-Security-Policy": _POLICY} | _GUARDED).items():
                    headers.setdefault(name, value)
            await send(message)

        answer = PlainTextResponse(f"refused: {why}\n", 403) if why else self.app
        await answer(scope, receive, guarded)

    def refused(self, request: Request) -> str:
        """Why this request is not answered; "" where it is."""
        headers, (_, port) = request.headers, request.scope["server"]
        hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        if headers.get("host") not in hosts:
            return "another host's name"
        if "origin" in headers and headers["origin"] not in {f"http://{host}" for host in hosts}:
            return "another site's page"
        given = request.query_params.get("token") or headers.get("authorization", "").removeprefix("Bearer ")
        if request.url.path.startswith("/assets/"):  # modules import each other by relative addresses
            given = request.url.path.split("/")[2]
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return "the token is missing or wrong; open the address that tilewright explore printed"
        return ""


class _SilentConnections:
    """Connections that have not brought a whole request's head, and when each is dropped.

    The server's own settings do not reach them: its keep-alive time begins after a first answer and ends with the next
    byte, and its limit on connections counts these and then refuses everybody. A connection is known by the client's
    address and port, which the transport and the request's scope both have.
    """

    def __init__(self) -> None:
        self.open: dict[Any, asyncio.WriteTransport] = {}
        self.working: Counter[Any] = Counter()
        self.ends: dict[Any, asyncio.TimerHandle] = {}

    def made(self, client: Any, transport: asyncio.WriteTransport) -> None:
        self.open[client] = transport
        self._wait(client)

    def lost(self, client: Any) -> None:
        del self.open[client]
        self._stop(client)

    def watch(self, app: ASGIApp) -> ASGIApp:
        """``app``, during whose work no time is counted; after it there is as much again for the next request."""

        async def listened(scope: Scope, receive: Receive, send: Send) -> None:
            client = tuple(scope.get("client") or ())
            self._stop(client)
            self.working[client] += 1  # pipelined requests overlap by some steps of the loop
            try:
                await app(scope, receive, send)
            finally:
                self.working[client] -= 1
                if not self.working[client]:
                    del self.working[client]
                    if client in self.open:
                        self._wait(client)

        return listened

    def _wait(self, client: Any) -> None:
        self.ends[client] = asyncio.get_running_loop().call_later(_SECONDS_SILENT, self.open[client].abort)
        if len(self.ends) > _MOST_SILENT:
            oldest = next(iter(self.ends))
            self._stop(oldest)
            self.open[oldest].abort()

    def _stop(self, client: Any) -> None:
        if client in self.ends:
            self.ends.pop(client).cancel()


class Explorer:
    """What is served: ``.app`` (an ASGI application), for the holder of ``.token``.

    ``file`` is the one file that may be read: its path, or its bytes with its name. ``sources`` maps names of source
    files to their texts, shown beside a program's operations. ``close()`` ends the workers; so does the end of the app.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        given: tuple[str, bytes] | None = None,
        sources: Mapping[str, str] | None = None,
        token: str = "",
    ) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self.sources = dict(sources or {})
        self.folder = Path(tempfile.mkdtemp(prefix="tilewright-explore-"))
        self.files: dict[str, Path] = {}
        self.first: dict[str, str] | None = None
        if file is not None:
            self.files["file"], self.first = file, {"id": "file", "name": file.name}
        elif given is not None:
            self.first = self._store(given[0], given[1])
        self.workers = {name: Worker() for name in ("quick", "slow")}
        # One line per worker: who waits for a slow answer takes no thread from those who type.
        self.lines = {name: CapacityLimiter(1) for name in self.workers}
        self.silent = _SilentConnections()
        routes = [
            Route("/", self._page),
            Route("/assets/{token}/{name}", self._asset),
            Route("/api/{question}", self._answer, methods=["POST"]),
            Route("/drop", self._drop, methods=["POST"]),
            Route("/report/{id}", self._report),
        ]
        pages = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={ClientDisconnect: _disconnected})
        self.app: ASGIApp = self.silent.watch(_Guard(pages, self.token))

    def end_work(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def close(self) -> None:
        """End the workers and delete what was dropped."""
        self.end_work()
        shutil.rmtree(self.folder, ignore_errors=True)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.close()

    # -- what is asked --------------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        start = {"file": self.first, "sources": sorted(self.sources), "program": self._assembly()}
        text = files("tilewright.explore").joinpath("assets", "page.html").read_text(encoding="utf-8")
        values = {"ASSETS": f"/assets/{self.token}", "MARK": shared_asset("mark.svg")}
        values["START"] = str(escape(json.dumps(start)))
        return HTMLResponse(re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text))

    def _assembly(self) -> str | None:
        """The text of the file, where it is a program of the matrix unit: the page edits it."""
        if self.first is None or not self.first["name"].endswith(".tasm"):
            return None
        return self.files[self.first["id"]].read_bytes()[:_MOST_ASSEMBLY].decode("utf-8", "replace")

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        text = _asset_text(name) if _ASSET.fullmatch(name) else None
        if text is None:
            return PlainTextResponse("no such asset\n", 404)
        return Response(text, media_type=_KINDS[Path(name).suffix])

    async def _answer(self, request: Request) -> Response:
        """A question as JSON and its answer: ``{"value": ...}``, or ``{"error": ...}`` with what, where and how."""
        question = request.path_params["question"]
        raw = await _body(request, MOST_QUESTION)
        if question not in QUESTIONS and question != "source":
            return _error("no such question")
        if raw is None:
            return _error(f"the question is longer than {MOST_QUESTION >> 20} MiB; drop the text as a file")
        try:
            values = json.loads(raw)
        except (ValueError, RecursionError):
            return _error("not JSON")
        if not isinstance(values, dict):
            return _error("not an object")
        if question == "source":  # of a file that was given with the program: its name is looked up, never opened
            return JSONResponse({"value": self.sources.get(str(values.get("name")))})
        path = self.files.get(str(values["file"])) if values.get("file") else None
        if values.get("file") and path is None:
            return _error("this file is not here any more; drop it again", gone=True)
        return Response(await self._ask(request, question, values, path), media_type="application/json")

    async def _ask(self, request: Request, question: str, values: Mapping[str, Any], path: Path | None) -> str:
        """The worker's answer, when it is this question's turn; ClientDisconnect where nobody waits for it by then."""
        _, name, seconds = QUESTIONS[question]
        ask = partial(self.workers[name].ask, question, values, str(path) if path else None, seconds)
        async with self.lines[name]:
            if await request.is_disconnected():
                raise ClientDisconnect
            return await to_thread.run_sync(ask)

    async def _drop(self, request: Request) -> Response:
        raw = await _body(request, MOST_DROPPED)
        if raw is None:
            return _error(f"larger than {MOST_DROPPED >> 20} MiB: give it as tilewright explore FILE")
        return JSONResponse({"value": self._store(request.headers.get("x-name", ""), raw)})

    def _store(self, name: str, raw: bytes) -> dict[str, str]:
        """Write what was dropped to a file of ours; the oldest goes where there are too many."""
        key = hashlib.sha256(raw).hexdigest()[:16]
        if key not in self.files:
            (self.folder / key).write_bytes(raw)
        self.files.pop(key, None)
        self.files[key] = self.folder / key
        for old in [key for key in self.files if key != "file"][:-_MOST_FILES]:
            self.files.pop(old).unlink(missing_ok=True)
        return {"id": key, "name": re.sub(r"[^\w. -]", "_", Path(name).name)[:80]}

    async def _report(self, request: Request) -> Response:
        """The whole report of a program, a page that stands for itself."""
        path = self.files.get(request.path_params["id"])
        if path is None:
            return PlainTextResponse("this file is not here any more; drop it again\n", 404)
        values = {"target": request.query_params.get("target", ""), "page": True}
        answer = json.loads(await self._ask(request, "program", values, path))
        if "error" in answer:
            return PlainTextResponse(f"{answer['error']['what']}\n", 422)
        return HTMLResponse(answer["value"]["html"], headers={"Content-Security-Policy": _REPORT_POLICY})


async def _body(request: Request, most: int) -> bytes | None:
    """The request's body; None where it is longer than ``most``, and then no more of it is read.

    ClientDisconnect where nothing of it comes for as long as a silent connection may stay.
    """
    parts, length, coming = list[bytes](), 0, request.stream()
    while True:
        try:
            async with asyncio.timeout(_SECONDS_SILENT):
                part = await anext(coming, None)
        except TimeoutError:
            raise ClientDisconnect from None
        if part is None:
            return b"".join(parts)
        length += len(part)
        if length > most:
            return None
        parts.append(part)


async def _disconnected(request: Request, error: Exception) -> Response:
    """Whoever asked has gone, or fell silent in the middle of a body: nothing went wrong, and nobody reads this."""
    return PlainTextResponse("", 400)


def _error(what: str, **more: Any) -> Response:
    return JSONResponse({"error": {"what": what, **more}})


@cache
def _asset_text(name: str) -> str | None:
    """A module or a style: ours, or one that pages share."""
    own = files("tilewright.explore").joinpath("assets", name)
    if own.is_file():
        return own.read_text(encoding="utf-8")
    return shared_asset(name) if name in ("page.css", "figure.css") else None


def serve(explorer: Explorer, port: int = 0, opened: Callable[[str], None] = print) -> None:
    """Serve until Ctrl-C or SIGTERM, which exit with 130 and 143; ``opened`` is told the address with its token.

    Raises :class:`UsageError` for a port that is not free.
    """
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """One of the server's, whose beginning and end are told to what drops silent ones."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.peer = tuple(transport.get_extra_info("peername") or ())
            explorer.silent.made(self.peer, transport)

        def connection_lost(self, error: Exception | None) -> None:
            explorer.silent.lost(self.peer)
            super().connection_lost(error)

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # they are ours: see below

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        explorer.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen: {reason}", where=f"--port {port}", how="--port 0 takes a free one") from None
    quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False, "ws": "none"}
    server = Server(uvicorn.Config(explorer.app, http=Connection, timeout_graceful_shutdown=1, **quiet))
    ended: list[int] = []

    def end(number: int, frame: object) -> None:
        ended.append(number)
        explorer.end_work()
        server.should_exit = True

    with listener, _handled(end):
        listener.listen()
        opened(f"http://127.0.0.1:{listener.getsockname()[1]}/?token={explorer.token}")
        sys.stdout.flush()
        try:
            server.run(sockets=[listener])
        finally:
            explorer.close()
    if ended:
        sys.exit(128 + ended[0])


@contextmanager
def _handled(end: Callable[[int, object], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call ``end`` inside the block, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
