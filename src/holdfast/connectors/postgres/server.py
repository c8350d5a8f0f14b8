"""A Postgres server as a plain value: how a connection to it is made, and what its errors mean.

Always true: no password is in a value, an error or a log; every error is told by what is to be done about it:
the server is not there now (Unavailable), or what was asked can never be (DefinitionError). A connection
that hears nothing for too long is broken off, so nobody waits for a dead server without end. Settings are
given in each transaction and end with it: a pooler (pgbouncer) in front of the server may refuse or forget
those that a connection begins with, and give the next transaction another session.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import DefinitionError, HoldfastError, MachineError, Unavailable, one_line
from holdfast.secret import Secret, refuse_password_in, refuse_text

if TYPE_CHECKING:
    import psycopg

APPLICATION_CHARS_MAX = 63
"""Postgres cuts longer names of applications off."""

_SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
}
"""Values as text are read back elsewhere: they must not depend on how a server or a role is set up."""

_OPTION = re.compile(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|[^\\\s])*)\s*")
"""A setting in `options` of a dsn."""

_NEVER = re.compile(
    r"password authentication failed|no password supplied|does not exist|no pg_hba\.conf entry"
    r"|not permitted to log in|permission denied|invalid (?:connection option|dsn|port|URI)|missing \"=\""
    r"|invalid sslmode|unsupported authentication|requires? (?:SSL|SCRAM)"
    r"|SASL authentication failed|no such (?:user|database)"
)
"""What a refused connection says where another try cannot help. There is no SQLSTATE in it to go by. The last
line is what pgbouncer says."""

_POOLER_REFUSES = {
    "unsupported startup parameter": "put these settings into options= of the dsn, where they are given in "
    "each transaction, and not into the environment (PGOPTIONS) or a service file",
    "transaction blocks not allowed": "let it pool sessions or transactions, not statements (pool_mode)",
}
"""What a pooler (pgbouncer) says where it can never be used as it is, and what to do. It gives these the
SQLSTATEs of outages."""

_STATEMENT = re.compile(r" LINE \d+: .* \^(?= |$)")
"""Where in a statement an error is: it is no statement of the user's."""

_OUTAGES = ("08", "53", "57P", "58", "40", "55P03", "57014", "25P03", "25P04", "25006", "XX")
"""Beginnings of SQLSTATEs of servers that are not to be had, or in trouble, now: connections, resources (a
full disk), operators who intervene, the machine, conflicts that pass, locks, transactions that took too long,
read-only standbys."""


@dataclass(frozen=True)
class PostgresServer:
    """`dsn` as libpq takes it, without a password. `timeout_seconds`: how long a connection may take, and how
    long a server may be silent while its answer is waited for."""

    dsn: str
    password: Secret | None = None
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        refuse_password_in(self.dsn, "dsn")
        refuse_text(self.password, "password")

    def connect(self, application: str) -> psycopg.Connection[Any]:
        """A new connection, in autocommit mode. What is asked of the server goes into a `transaction`."""
        driver = psycopg_driver()
        own = {} if self.password is None else {"password": self.password.resolve()}
        try:
            if self._given:
                own["options"] = ""
            connection: psycopg.Connection[Any] = driver.connect(
                self.dsn,
                autocommit=True,
                prepare_threshold=None,
                application_name=application[:APPLICATION_CHARS_MAX],
                client_encoding="UTF8",
                connect_timeout=max(2, int(self.timeout_seconds)),
                keepalives_idle=max(1, int(self.timeout_seconds)),
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=int(self.timeout_seconds * 1_000),
                **own,
            )
        except driver.Error as cause:
            raise self._refused(cause) from None
        connection.isolation_level = driver.IsolationLevel.READ_COMMITTED
        return connection

    @contextmanager
    def transaction(
        self, connection: psycopg.Connection[Any], **settings: str
    ) -> Iterator[psycopg.Transaction]:
        """A transaction under READ COMMITTED. `settings` hold until it ends, and so do those that `options`
        of the dsn asks for."""
        given = self._given | _SETTINGS | settings
        asked = ", ".join(["set_config(%s, %s, true)"] * len(given))
        with connection.transaction() as begun:
            connection.execute(f"SELECT {asked}", [text for setting in given.items() for text in setting])
            yield begun

    @contextmanager
    def looking(self, application: str, what: str) -> Iterator[psycopg.Connection[Any]]:
        """A connection for one transaction."""
        connection = self.connect(application)
        silence = Silence(connection, self.timeout_seconds)
        with self.told(what), connection, silence, self.transaction(connection):
            yield connection

    @property
    def _given(self) -> dict[str, str]:
        """The settings that `options` of the dsn asks for."""
        options = psycopg_driver().conninfo.conninfo_to_dict(self.dsn).get("options") or ""
        found = list(_OPTION.finditer(options))
        if "".join(each[0] for each in found) != options.lstrip():
            raise DefinitionError(
                f"dsn={self.dsn!r} has options={options!r}, which are not settings alone; write each of them "
                "as -c name=value"
            )
        return {each[1].replace("-", "_"): re.sub(r"\\(.)", r"\1", each[2]) for each in found}

    @property
    def place(self) -> str:
        """Where it is, for a person."""
        driver = psycopg_driver()
        try:
            found = driver.conninfo.conninfo_to_dict(self.dsn)
        except driver.Error:
            return "the server"
        return f"{found.get('host', 'localhost')}:{found.get('port', 5432)}/{found.get('dbname', '')}"

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Errors of the client library within become errors that say what could not be done."""
        try:
            yield
        except psycopg_driver().Error as cause:
            raise self.error(cause, what) from None

    def error(self, cause: Exception, what: str) -> HoldfastError:
        text = self._hidden(_STATEMENT.sub("", one_line(cause)))
        if (refusal := self._pooler_refusal(text)) is not None:
            return refusal
        if _is_outage(cause):
            return Unavailable(
                f"Postgres at {self.place} is not to be had, {what}: {text}; see to the server"
            )
        return DefinitionError(
            f"Postgres at {self.place} refuses, {what}: {text}; correct the table, the rights or the job"
        )

    def _refused(self, cause: Exception) -> HoldfastError:
        text = self._hidden(one_line(cause))
        if (refusal := self._pooler_refusal(text)) is not None:
            return refusal
        if _NEVER.search(text):
            return DefinitionError(
                f"Postgres lets nobody in with dsn={self.dsn!r}: {text}; correct the dsn, the password or "
                "the rights of the user"
            )
        return Unavailable(f"Postgres at {self.place} cannot be reached: {text}; see to the server")

    def _pooler_refusal(self, text: str) -> DefinitionError | None:
        for said, remedy in _POOLER_REFUSES.items():
            if said in text:
                return DefinitionError(
                    f"the pooler in front of Postgres at {self.place} (pgbouncer) refuses: {text}; {remedy}"
                )
        return None

    def _hidden(self, text: str) -> str:
        return text if self.password is None else self.password.hide_in(text)


def _is_outage(cause: Exception) -> bool:
    """Whether an error of the client library says that the server is not to be had now."""
    state = getattr(cause, "sqlstate", None)
    if state is None:
        return isinstance(cause, psycopg_driver().OperationalError | psycopg_driver().InterfaceError)
    return str(state).startswith(_OUTAGES)


class Silence:
    """Breaks a connection off if nothing is heard for so long: `heard()` begins the wait again.

    The client library waits for an answer without end, and a server behind a cut cable gives none.
    """

    def __init__(self, connection: psycopg.Connection[Any], seconds: float) -> None:
        self._fileno, self._seconds = connection.fileno, seconds
        self._heard, self._ended, self._patience = threading.Event(), False, 1.0
        self._broken = False

    def __enter__(self) -> Silence:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def heard(self, patience: float = 1.0) -> None:
        """Begin the wait again. `patience`: how many times as long as usual it may take now."""
        self._patience = patience
        self._heard.set()

    def __exit__(self, *raised: object) -> None:
        """Unavailable, where an error within comes of a connection that was broken off."""
        self._ended = True
        self._heard.set()
        if self._broken and any(isinstance(each, psycopg_driver().Error) for each in raised):
            raise Unavailable(
                f"the Postgres server said nothing for {self._seconds * self._patience:g} s and was not "
                "waited for any longer; see to the server, or, where it works for so long, give it more "
                "timeout_seconds or the job smaller epochs"
            ) from None

    def _watch(self) -> None:
        while self._heard.wait(self._seconds * self._patience):
            # In this order: the end, if it comes in between, is seen, and not cleared away.
            self._heard.clear()
            if self._ended:
                return
        self._broken = True
        try:
            # A copy of the descriptor: the library keeps its own, and reads from it that all is over.
            with socket.socket(fileno=os.dup(self._fileno())) as cable:
                cable.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg_driver().Error):
            return  # closed meanwhile


def psycopg_driver() -> Any:
    try:
        import psycopg
    except ImportError as cause:
        raise MachineError(
            "Postgres needs the package psycopg; install it: pip install 'holdfast[postgres]'"
        ) from cause
    return psycopg
