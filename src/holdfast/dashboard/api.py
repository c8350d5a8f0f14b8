"""The HTTP control API: what a job's storage and its running process know, and the verbs, as JSON.

Always true: without the token (where there is one) nothing but /health and /ready is answered, and nothing is
touched; every verb goes through a request in storage, so it is on record and carried out at most once;
an error is one line: {"error": "..."}.
Never here: carrying out a verb (see runtime.control.request_server), sockets and threads (see server).
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.admin.status import asked_plainly, commits_plainly
from holdfast.checkpoint.chain.checkpoint import read_job
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import newest_term
from holdfast.checkpoint.log.incidents import read_failures
from holdfast.checkpoint.log.requests import read_asked
from holdfast.checkpoint.store.log_records import RequestRecord
from holdfast.clock import Clock
from holdfast.dashboard.metrics import CONTENT_TYPE, Metrics
from holdfast.errors import DefinitionError, HoldfastError, RestoreError, RetryableError
from holdfast.runtime.control.request_client import ask_leader, asker
from holdfast.runtime.progress import Listener, Progress
from holdfast.storage.contract import Storage

if TYPE_CHECKING:
    from holdfast.inspect.point_query import StateReader

BODY_BYTES_MAX = 65_536
OPEN_PATHS = ("/health", "/ready")
"""For probes, which seldom carry a token; they tell next to nothing."""
VERB_PATHS = {"/savepoints": "savepoint", "/stop": "stop", "/rescale": "rescale", "/retry": "retry"}
JOBS = "/jobs"
"""Where the jobs of a process are that runs several."""


class Served(Protocol):
    """What the API needs of a running job; a JobHandle has it."""

    @property
    def storage(self) -> Storage:
        """The job's checkpoint storage."""

    @property
    def running(self) -> bool:
        """Whether the run has not ended."""

    def status(self) -> Progress:
        """Where the run stands now."""

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of every change from now on."""


class Api:
    """The handlers. Blocking ones run in threads of their own."""

    def __init__(self, served: Served, metrics: Metrics, clock: Clock) -> None:
        self._served, self._metrics, self._clock = served, metrics, clock
        self._reader: StateReader | None = None
        self._opening = threading.Lock()

    def close(self) -> None:
        """Let go of what point queries have opened."""
        with self._opening:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    @property
    def phase(self) -> str:
        return self._served.status().phase

    @property
    def leading(self) -> bool:
        """Whether this process leads the job, and the job runs."""
        return self.phase == "running" and self._served.running

    def ready(self, request: Request) -> Response:
        return JSONResponse({"ready": self.leading, "phase": self.phase}, 200 if self.leading else 503)

    def status(self, request: Request) -> Response:
        leader = msgspec.to_builtins(newest_term(self._served.storage))
        told = {**asdict(self._served.status()), "leader": leader, "now_ms": self._clock.now_ms()}
        return JSONResponse(told)

    def checkpoints(self, request: Request) -> Response:
        return JSONResponse({"checkpoints": commits_plainly(History(self._served.storage))})

    def failures(self, request: Request) -> Response:
        return JSONResponse({"failures": msgspec.to_builtins(read_failures(self._served.storage))})

    def asked(self, request: Request) -> Response:
        try:
            return JSONResponse(asked_plainly(read_asked(self._served.storage, request.path_params["id"])))
        except RestoreError as missing:
            return _error(404, str(missing))

    def state(self, request: Request) -> Response:
        try:
            key = json.loads(request.query_params["key"])
        except KeyError:
            return _error(400, "the key is missing; add ?key= and the key as JSON")
        except ValueError as cause:
            return _error(400, f"the key is not JSON ({cause}); a text needs its quotes: ?key=%22anna%22")
        try:
            found = self._open_reader().get(request.path_params["uid"], key)
        except RestoreError as missing:
            return _error(404, str(missing))
        body = msgspec.json.encode(asdict(found), enc_hook=str)
        return Response(body, media_type="application/json")

    def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def verb(self, verb: str, request: Request) -> Response:
        arguments = await _arguments(request)
        client = request.client.host if request.client is not None else "?"
        by = f"{asker('http')} from {client}"
        asked = await run_in_threadpool(lambda: self._ask(verb, arguments, by))
        place = f"{request.scope.get('root_path', '')}/requests/{asked.id}"
        return JSONResponse({"request": asked.id}, 202, {"Location": place})

    def _ask(self, verb: str, arguments: dict[str, Any], by: str) -> RequestRecord:
        # Before the job has made its checkpoint, anything left in its place would keep it from doing so.
        read_job(self._served.storage)
        return ask_leader(self._served.storage, verb, arguments, self._clock, by=by)

    def _open_reader(self) -> StateReader:
        # Imported and opened by the first query: most servers never see one.
        from holdfast.inspect.point_query import StateReader

        with self._opening:
            if self._reader is None:
                self._reader = StateReader(self._served.storage.url)
            return self._reader


def application(handlers: Api | Mapping[str, Api], token: str | None) -> ASGIApp:
    """The whole API as an ASGI application: of one job, or of several by name, each below `/jobs/NAME`."""
    errors: dict[Any, Any] = {
        HTTPException: _told_http,
        HoldfastError: _told_ours,
        Exception: _told_unexpected,
    }
    routes: list[BaseRoute] = []
    if isinstance(handlers, Api):
        routes += _routes(handlers)
    else:
        several = Several(handlers)
        routes += [
            Route("/health", _health, methods=["GET"]),
            Route("/ready", several.ready, methods=["GET"]),
            Route(JOBS, several.jobs, methods=["GET"]),
        ]
        routes += [Mount(f"{JOBS}/{name}", routes=_routes(each)) for name, each in handlers.items()]
    return Gate(Starlette(routes=routes, exception_handlers=errors), token)


def _health(request: Request) -> Response:
    return JSONResponse({"health": "ok"})


class Several:
    """The handlers that speak for all jobs of a process."""

    def __init__(self, handlers: Mapping[str, Api]) -> None:
        self._handlers = handlers

    def ready(self, request: Request) -> Response:
        leading = {name: each.leading for name, each in self._handlers.items()}
        ready = any(leading.values())
        return JSONResponse({"ready": ready, "jobs": leading}, 200 if ready else 503)

    def jobs(self, request: Request) -> Response:
        return JSONResponse({"jobs": {name: {"phase": each.phase} for name, each in self._handlers.items()}})


def _routes(handlers: Api) -> list[Route]:
    reading: list[tuple[str, Callable[[Request], Response]]] = [
        ("/health", _health),
        ("/ready", handlers.ready),
        ("/status", handlers.status),
        ("/checkpoints", handlers.checkpoints),
        ("/failures", handlers.failures),
        ("/requests/{id}", handlers.asked),
        ("/state/{uid}", handlers.state),
        ("/metrics", handlers.metrics),
    ]
    routes = [Route(path, handler, methods=["GET"]) for path, handler in reading]
    return routes + [
        Route(path, partial(handlers.verb, verb), methods=["POST"]) for path, verb in VERB_PATHS.items()
    ]


class Gate:
    """Lets in requests with the token; where there is none, requests to a loopback address."""

    def __init__(self, inside: ASGIApp, token: str | None) -> None:
        self.inside = inside
        self._token = token.encode() if token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self.inside)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        # The path that is routed by, not that of the url: older Starlettes let the Host header be part of it.
        if request.scope["path"] in OPEN_PATHS:
            return None
        if self._token is None:
            # A page in a browser can make any name point here; it cannot choose this header.
            if is_loopback(request.url.hostname or ""):
                return None
            return _error(403, "this server answers to loopback names only; ask for http://127.0.0.1")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # In constant time: how long a refusal takes says nothing about the token.
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token):
            return None
        what = "the token is wrong" if given else "a token is needed"
        told = _error(401, f"{what}; send it as 'Authorization: Bearer <token>'")
        told.headers["WWW-Authenticate"] = "Bearer"
        return told


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def _arguments(request: Request) -> dict[str, Any]:
    """The JSON object in the body; none at all is an empty one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Any page in a browser can send other types here, even with no body, without asking first.
        raise HTTPException(415, "the body must be JSON; send 'Content-Type: application/json'")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"the body is larger than {BODY_BYTES_MAX} bytes; send less")
    try:
        found = json.loads(bytes(body) or b"{}")
    except ValueError as cause:
        raise HTTPException(400, f"the body is not JSON ({cause}); send an object") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "the body is not a JSON object; send one, such as {}")
    return found


def _error(code: int, text: str) -> Response:
    return JSONResponse({"error": " ".join(text.split())}, code)


def _told_http(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        return _error(404, f"there is no {request.url.path}; see docs/how-to/control.md")
    if error.status_code == 405:
        return _error(405, f"{request.url.path} cannot be asked with {request.method}")
    return _error(error.status_code, str(error.detail))


def _told_ours(request: Request, error: HoldfastError) -> Response:
    for kind, code in ((DefinitionError, 400), (RestoreError, 409), (RetryableError, 503)):
        if isinstance(error, kind):
            return _error(code, str(error))
    return _error(500, str(error))


def _told_unexpected(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return _error(400, "the connection was closed")
    return _error(500, f"unexpected {type(error).__name__}: {error}")
