"""A short name for what a graph computes: its structure, its uids and types, and the user's code.

Two processes that declare the same job agree on it, whatever the hash seed, the directory or the line
numbers. It is written into plans, so that a leader knows whether it may follow a plan that another process
made.

Covered: bytecode, constants, names and defaults of functions, and those of the functions, classes and plain
values of the same module that they name; closures; configuration of sources, sinks and functions (attributes
without a leading underscore). Of other modules that ship with the job: the code of what they name, no value
(see shipped_code).
Not covered: libraries (only the names used of them), what is imported within a function, other values that
are not plain data (only their type counts), comments, line numbers, file paths. Another minor version of
Python compiles to other bytecode and so gives another fingerprint: plans are then made again.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from holdfast.graph.job_graph import (
    ChannelNode,
    ConnectNode,
    DoorNode,
    Graph,
    LookupNode,
    Node,
    OperatorNode,
    OutletNode,
    OutputNode,
    SinkNode,
    SourceNode,
    TransformNode,
    WatermarkNode,
    parents_of,
)
from holdfast.graph.shipped_code import INSTALLED, ShippedCode, names_in, package_of

_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_CLASS_MACHINERY = {
    "__dict__",
    "__doc__",
    "__module__",
    "__qualname__",
    "__weakref__",
    "__annotations__",
    "__firstlineno__",
    "__slotnames__",  # written into a class when an object of it is first pickled or copied
    "__static_attributes__",
}


def fingerprint(graph: Graph) -> str:
    """The same text for the same job, in every process."""
    walk = _Walk(_own_packages(graph), graph.place.file)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    parts = [graph.name]
    for node in graph.nodes:
        parents = [str(numbers[parent]) for parent in parents_of(node)]
        parts.append(_digest(type(node).__name__, *parents, *_settings(node, walk)))
    return _digest(*parts)


def fingerprint_parts(graph: Graph) -> dict[str, str]:
    """A short name for each part of a job, by what people call the part. Two jobs with equal parts have equal
    fingerprints, apart from their names.
    """
    own, names, file = _own_packages(graph), _part_names(graph), graph.place.file
    return {
        names[node]: _digest(
            type(node).__name__,
            *(names[parent] for parent in parents_of(node)),
            *_settings(node, _Walk(own, file)),
        )
        for node in graph.nodes
    }


def _part_names(graph: Graph) -> dict[Node, str]:
    """`operator counts`, `source events`; what has no uid is counted: `transform 2`."""
    given: dict[Node, str] = {}
    counted: dict[str, int] = {}
    for node in graph.nodes:
        kind = "sink" if isinstance(node, DoorNode) else type(node).__name__.removesuffix("Node").lower()
        uid = getattr(node, "uid", None)
        if uid is None:
            counted[kind] = counted.get(kind, 0) + 1
        given[node] = f"{kind} {uid if uid is not None else counted[kind]}"
    return given


def _own_packages(graph: Graph) -> frozenset[str]:
    roots: list[object] = [node.fn for node in graph.nodes if isinstance(node, TransformNode)]
    roots += [node.table for node in graph.lookups]
    roots += [type(node.function) for node in graph.operators]
    return frozenset(package_of(getattr(root, "__module__", None) or "") for root in roots)


def _settings(node: Node, walk: _Walk) -> list[str]:
    if isinstance(node, SourceNode):
        # What is said when it is silent changes no row.
        aside = [] if node.on_error == "fail" else [str(node.on_error)]
        return [str(node.uid), walk.of(node.source), *aside]
    if isinstance(node, SinkNode):
        return [str(node.uid), walk.of(node.sink)]
    if isinstance(node, TransformNode):
        return [str(node.materialize), walk.of(node.fn)]
    if isinstance(node, LookupNode):
        # How often the table is copied changes no row of an epoch: its plan names the copy.
        return [walk.of((node.uid, node.on, node.how)), walk.of(node.table)]
    if isinstance(node, WatermarkNode):
        return [walk.of((node.column, node.delay, node.idle_after))]
    if isinstance(node, OperatorNode):
        fixed = walk.of((node.uid, node.key, node.order_by, node.on_error))
        second = (node.right_key, node.right_order_by) if isinstance(node, ConnectNode) else ()
        return [fixed, *map(walk.of, second), walk.of(node.function)]
    if isinstance(node, ChannelNode | OutletNode):
        part = node.part if isinstance(node, ChannelNode) else node.channel.part
        return [str(node.uid), str(part.name)]
    if isinstance(node, DoorNode):
        # How much of it is kept changes no row.
        return [str(node.uid)]
    return [node.name] if isinstance(node, OutputNode) else []


class _Walk:
    """Digests values; functions and classes that lead back to themselves are met once.

    `own` names the packages of the job itself: they are looked into even where they are installed.
    `file`: where it is declared.
    """

    def __init__(self, own: frozenset[str], file: str) -> None:
        self._own, self._shipped = own, ShippedCode(own, file, self.of)
        self._met: dict[int, int] = {}
        self._kept: list[object] = []
        """Keeps what was met alive, so that no other object gets its id."""

    def of(self, value: Any) -> str:
        if isinstance(value, _PLAIN_TYPES):
            return _digest(type(value).__name__, repr(value))
        if isinstance(value, list | tuple):
            return _digest(type(value).__name__, *map(self.of, value))
        if isinstance(value, set | frozenset):
            return _digest("set", *sorted(map(self.of, value)) if _is_plain(value) else ())
        if isinstance(value, Mapping):
            return _digest("map", *(self.of(pair) for pair in value.items()))
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, pa.DataType | pa.Field | pa.Schema):
            return _digest("arrow", str(value))
        if id(value) in self._met:
            return _digest("again", str(self._met[id(value)]))
        self._met[id(value)] = len(self._met)
        self._kept.append(value)
        return self._object(value)

    def _object(self, value: Any) -> str:
        if isinstance(value, types.FunctionType):
            return _named(value) if self._is_foreign(value) else self._function(value)
        if isinstance(value, types.MethodType):
            return _digest("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            return _digest("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, staticmethod | classmethod):
            return _digest(type(value).__name__, self.of(value.__func__))
        if isinstance(value, property):
            return _digest("property", self.of(value.fget), self.of(value.fset))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            return _digest("named", value.__name__)
        return _digest("object", self.of(type(value)), *self._configuration(value))

    def _function(self, function: types.FunctionType) -> str:
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        defaults = [self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        return _digest("function", self.of(function.__code__), *defaults, *cells, *self._globals(function))

    def _code(self, code: types.CodeType) -> str:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        table = getattr(code, "co_exceptiontable", b"")
        return _digest(
            "code", *(self.of(part) for part in (code.co_code, table, code.co_consts, names, counts))
        )

    def _cell(self, cell: types.CellType) -> str:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # not filled yet
            return _digest("empty")

    def _globals(self, function: types.FunctionType) -> Iterator[str]:
        """What the function's code names in its own module: helpers, classes and plain constants; and what it
        names of other modules that ship with the job."""
        names = frozenset(names_in(function.__code__))
        for name in sorted(names):
            if name not in function.__globals__:
                continue
            value = function.__globals__[name]
            own = getattr(value, "__module__", None) == function.__module__
            if (own and isinstance(value, types.FunctionType | type)) or _is_plain(value):
                yield _digest("global", name, self.of(value))
            elif code := self._shipped.reached_from(value, names):
                yield _digest("global", name, *code)

    def _class(self, cls: type) -> str:
        """A user's class with everything in it; an installed one by its name."""
        parts = [cls.__qualname__]
        for base in [cls] if self._is_foreign(cls) else cls.__mro__:
            if self._is_foreign(base):
                parts.append(_named(base))
                continue
            for name, value in sorted(vars(base).items()):
                if name not in _CLASS_MACHINERY and not name.startswith("_abc_"):
                    parts += [name, self.of(value)]
        return _digest("class", *parts)

    def _is_foreign(self, value: types.FunctionType | type) -> bool:
        package = package_of(value.__module__ or "")
        if package == "holdfast" or package in sys.builtin_module_names:
            return True
        file = getattr(sys.modules.get(value.__module__), "__file__", None) or ""
        return package not in self._own and file.startswith(INSTALLED)

    def _configuration(self, value: object) -> Iterator[str]:
        slots = [slot for cls in type(value).__mro__ for slot in getattr(cls, "__slots__", ())]
        names = {*getattr(value, "__dict__", {}), *slots}
        for name in sorted(names):
            if not name.startswith("_"):
                yield _digest("attribute", name, self.of(getattr(value, name, None)))


def _named(value: types.FunctionType | type) -> str:
    module = value.__module__ or ""
    # Where Holdfast keeps its own classes does not belong to the job: another release may move them.
    return _digest("named", "holdfast" if package_of(module) == "holdfast" else module, value.__qualname__)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return isinstance(value, _PLAIN_TYPES)


def _digest(*parts: str) -> str:
    text = "\x00".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
