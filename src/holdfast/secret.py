"""Secrets as references: a job's file says where a password is to be had, never what it is.

A reference is resolved where a connection is made, on the driver or inside a task, each time anew: a value
that was rotated is used by the next connection.
Always true: a reference holds a kind and a name, and nothing else; so its repr, its pickled bytes and the
fingerprint of a job that uses it tell where the value is, and never the value.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import DefinitionError, MachineError

HIDDEN = "***"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMES = r"(?:\w*(?:password|passwd|pwd|secret)|scram_\w+_key)"
_PASSWORD_IN_URL = re.compile(
    rf"""://[^/?\#@]*:[^@]+@                           # user:password@host
        |[?&]{_NAMES}=[^&]                             # a parameter of the url
        |[?&]ssl_options=[^&]*password                 # RabbitMQ: what unlocks the key
        |(?:^|\s){_NAMES}\s*=\s*\S                     # Postgres: keywords and values
    """,
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a password or a key is: `Secret.env("PGPASSWORD")` in a variable of the environment,
    `Secret.file("/run/secrets/pg")` in a file. It has to be there on every machine that connects: that of the
    driver, and those of the executors where tasks do.
    """

    kind: Literal["env", "file"]
    name: str

    @classmethod
    def env(cls, name: str) -> Secret:
        """The value of an environment variable."""
        if not _VARIABLE.fullmatch(name):
            # What was given may be the password itself, so it is not shown.
            raise DefinitionError(
                "Secret.env(...) was given what is no name of an environment variable; give the name of the "
                "variable that holds the secret, not the secret"
            )
        return cls("env", name)

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> Secret:
        """The text of a file, without the line break at its end."""
        name = os.fspath(path)
        if not os.path.isabs(name):
            raise DefinitionError(
                "Secret.file(...) was given a path that is not absolute, and tasks run in directories of "
                "their own; give the whole path of the file that holds the secret"
            )
        return cls("file", name)

    def __repr__(self) -> str:
        return f"Secret.{self.kind}({self.name!r})"

    def resolve(self) -> str:
        """The value, for the hands of a client library only. MachineError: it is not to be had here."""
        value = os.environ.get(self.name) if self.kind == "env" else self._read()
        if not value:
            what = "environment variable" if self.kind == "env" else "file"
            state = "is not set" if value is None else "is empty"
            raise MachineError(
                f"the secret of {self} is needed on this machine, and the {what} {self.name} {state}; "
                "provide it wherever the job connects: for the driver and for every executor"
            )
        return value

    def hide_in(self, text: str) -> str:
        """A text without the value, if it can be had: for what a client library says."""
        try:
            return text.replace(self.resolve(), HIDDEN)
        except MachineError:
            return text

    def _read(self) -> str:
        try:
            with open(self.name, encoding="utf-8") as file:
                return file.read().removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as cause:
            why = cause.strerror if isinstance(cause, OSError) else "it is not text in UTF-8"
            raise MachineError(
                f"the secret of {self} cannot be read on this machine ({why}); provide the file wherever the "
                "job connects: for the driver and for every executor"
            ) from None


def refuse_password_in(url: str, argument: str) -> None:
    """DefinitionError: `url` (a url, or Postgres' keywords and values) carries a password. Urls get into
    logs, plans and lists of processes. `argument` is what the user wrote it for, as `url` or `dsn`."""
    if _PASSWORD_IN_URL.search(url):
        raise DefinitionError(
            f"{argument}=... holds a password, which would get into logs and records; take it out there and "
            'give it as password=hf.Secret.env("NAME") or hf.Secret.file("/path")'
        )


def refuse_text(password: object, argument: str) -> None:
    """DefinitionError: a password was written down where a reference belongs. It is not shown."""
    if password is not None and not isinstance(password, Secret):
        raise DefinitionError(
            f"{argument}=... is no reference; give {argument}=hf.Secret.env('NAME') or hf.Secret.file(path)"
        )
