"""Linear Road, as Sax et al. 2013 ran it: tolls of an expressway from position reports.

    pip install headgate-lab
    headgate run examples/linear_road.py:flow --once
    headgate tune examples/linear_road.py:flow

    spout -> parse -> agg -> mv -> toll
                          -> block

Reports come as lines of text, with the fields of the Linear Road benchmark. `parse` splits them,
`agg` takes the mean speed and counts the cars of every segment and minute, `mv` takes the mean of
its last five minutes, `block` the vehicles it can carry, `toll` what it costs to enter it in the
next minute: as in the benchmark, 2 (cars - 50)^2 cents if more than fifty drive slower than forty
miles an hour, else nothing. (There an accident ahead waives it; the paper's flow looks for none.)
`agg` has two consumers with different keys; how their rows are batched is the runtime's affair
(docs/guide/batching.md). `query.table("tolls")` and `query.table("capacity")` read the results;
a minute is there once, when the reports that follow it have come.
"""

from pathlib import Path

import headgate as hg
from headgate.demo import write_epochs
from headgate_lab.papers.linear_road import LINES, linear_road, position_reports

IN = Path("artifacts/linear_road/in")


def reports(spark, rows_per_epoch):
    """Ten minutes of 20,000 vehicles, made on first use; an epoch is half a minute if it may."""
    if not IN.exists():
        write_epochs((position_reports(20_000, seed=7, epoch=epoch) for epoch in range(20)), IN)
    options = {} if rows_per_epoch else {"maxFilesPerTrigger": "1"}
    reader = hg.Reader("parquet", options, schema="line string, ts timestamp", path=str(IN))
    return reader(spark, rows_per_epoch)


flow = hg.Flow("linear_road")
linear_road(flow.source(reports, schema=LINES, name="spout", event_time="ts"))
flow.dead_letters().to_table("no_reports")


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(
        local_session("linear_road"),
        slots=2,
        checkpoint="artifacts/linear_road/checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    query.table("tolls").orderBy("total", ascending=False).show(10)
