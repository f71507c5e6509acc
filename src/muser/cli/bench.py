"""`muser bench`: measurements, each written down as a record."""

from cyclopts import App

from muser.cli import bench_cells, bench_kernels, bench_report, bench_starts, bench_vs


def bench_app() -> App:
    """The commands of `muser bench`."""
    app = App(name="bench", help="Measure, and write down what was measured.")
    app.command(bench_cells.decode)
    app.command(bench_cells.prefill)
    app.command(bench_cells.batch)
    app.command(bench_starts.start)
    app.command(bench_starts.load)
    app.command(bench_kernels.kernels)
    app.command(bench_vs.vs)
    app.command(bench_report.report)
    return app
