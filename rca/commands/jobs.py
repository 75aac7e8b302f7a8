"""`rca jobs`: which jobs a Prometheus server has, by the names that `--job` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rca.commands.prometheus_options import NO_OPTIONS, PrometheusOptions, takes_prometheus
from rca.errors import InvalidInput
from rca.process import start_quickly
from rca.terminal import OutputFormat, rendered, write

if TYPE_CHECKING:
    from rca.sources.prometheus.job_names import KnownJob

EXAMPLES = """
rca jobs --prometheus http://prometheus:9090
rca jobs --since 2d --namespace ml-train
rca jobs --format json | jq -r '.[].job'
"""


@takes_prometheus("job", "start", "end")
def command(
    asked: PrometheusOptions = NO_OPTIONS,
    format_: Annotated[
        OutputFormat, typer.Option("--format", "-f", help="Output format.")
    ] = OutputFormat.table,
) -> None:
    """List the jobs that `rca diagnose --prometheus` can diagnose.

    Names come from labels of controllers in Kubernetes, numbers of Slurm, names of pods, and the job of the
    scrape for devices without any of them.

    Exit codes: 0 listed, 2 bad input.
    """
    if asked.url is None:
        raise InvalidInput("no server to ask", hint="give --prometheus URL, or set RCA_PROMETHEUS_URL")
    start_quickly()
    found = asked.jobs()
    if format_ is OutputFormat.json:
        import orjson

        rows = [
            {
                "job": each.job.name,
                "namespace": each.job.namespace or None,
                "devices": each.devices,
                "nodes": list(each.nodes),
                "by": each.job.by,
            }
            for each in found
        ]
        write(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    write(_table(found))


def _table(found: list[KnownJob]) -> str:
    from rich.table import Table
    from rich.text import Text

    table = Table("job", "namespace", "devices", "nodes", "named by", box=None, pad_edge=False)
    for each in found:
        shown = ", ".join(each.nodes[:4]) + (", ..." if len(each.nodes) > 4 else "")
        row = (each.job.name, each.job.namespace, str(each.devices), shown, each.job.by)
        table.add_row(*map(Text, row))
    return rendered(table) if found else "no device reports for any job in this time"
