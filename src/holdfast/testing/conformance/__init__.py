"""Whether a source or a sink of one's own keeps what `holdfast.connectors` promises for it.

    def test_it_keeps_its_promises(spark):
        conformance.check_source(lambda: Orders("orders.db"), spark=spark)

Needs no pytest: each check is a plain function that gives back a Report, or raises BrokenPromises.
"""

from holdfast.testing.conformance.lanes import check_lanes
from holdfast.testing.conformance.promises import Broken, BrokenPromises, Report
from holdfast.testing.conformance.sinks import check_sink
from holdfast.testing.conformance.sources import check_source

__all__ = ["Broken", "BrokenPromises", "Report", "check_lanes", "check_sink", "check_source"]


def __dir__() -> list[str]:
    return sorted(__all__)
