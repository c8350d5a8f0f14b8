"""Rows once each: those whose key was seen before are left out, as long as that is remembered.

What was seen is keyed state with a time to live, and part of every checkpoint: exactly as much is remembered
after a crash as before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import DefinitionError
from holdfast.graph.column_types import known_schema
from holdfast.graph.contexts import BatchContext
from holdfast.graph.functions import BatchFunction
from holdfast.graph.job_graph import Mistake, Place, StreamNode
from holdfast.state.cells.declarations import ValueState
from holdfast.state.encoding.types import schema_ddl

if TYPE_CHECKING:
    from holdfast.graph.streams import Declaration, KeyedStream, OperatorStream


class OnceEach(BatchFunction):
    """Lets the first row of each key through. A row without a key (null in one of its columns) cannot be told
    apart from others, and always passes."""

    seen: ValueState

    def process(self, rows: pa.Table, ctx: BatchContext) -> pa.Table:
        known = np.asarray(self.seen.column.to_numpy(zero_copy_only=False), bool)
        firsts = np.zeros(len(ctx.key_index), bool)
        firsts[np.unique(ctx.key_index, return_index=True)[1]] = True
        keyless = np.zeros(len(ctx.keys), bool)
        for column in ctx.keys.columns:
            keyless |= pc.is_null(column).to_numpy(zero_copy_only=False)
        passes = (firsts & ~known[ctx.key_index]) | keyless[ctx.key_index]
        self.seen.column = pa.array(~keyless)
        return rows.filter(pa.array(passes))


class Deduplicable:
    """What a stream has for rows that come more than once."""

    if TYPE_CHECKING:
        _declaration: Declaration
        _node: StreamNode

        def key_by(self, *columns: str) -> KeyedStream: ...

    def drop_duplicates(
        self, *, by: str | Sequence[str], ttl: str | None = None, uid: str | None = None
    ) -> OperatorStream:
        """The rows, without those whose columns `by` have the values of an earlier one. Which of several rows
        in one epoch stays is not specified; a row with a null in `by` always does.

        `ttl`: a duration such as "1d", for which values are remembered after they were last seen; without it
        for ever. Declare it after a source or an operator: behind a transform columns are not known yet.
        """
        columns = (by,) if isinstance(by, str) else tuple(by)
        rows, problem = known_schema(self._node), ""
        seen = ValueState("boolean", default=False)
        try:
            seen = ValueState("boolean", default=False, ttl=ttl)
        except DefinitionError as refusal:
            problem = str(refusal)
        if rows is None:
            problem = (
                "the columns of its rows are not known here; say it before transforms, or key and process"
            )
        if problem:
            self._declaration._mistakes.append(Mistake.of_text(Place.of_caller(), "drop_duplicates", problem))
        output = schema_ddl(
            rows if rows is not None else pa.schema([(name, pa.string()) for name in columns])
        )
        function = type("OnceEach", (OnceEach,), {"output": output, "seen": seen})()
        return self.key_by(*columns).process_batch(function, uid=uid)
