"""`reread report`: one page about runs."""

from pathlib import Path

from reread.preprocessing.errors import writing


def report(runs: list[Path], output: Path | None) -> None:
    """Write the page and print the last figures; of a suite, the table of its tasks.

    The page is RUN/report.html by default, for several runs ./report.html.
    """
    from reread.pipeline.report.page import print_figures, print_papers, write_report
    from reread.pipeline.report.suite import is_suite, report_suite

    for folder in runs:
        if is_suite(folder):
            report_suite(folder)
    runs = [folder for folder in runs if not is_suite(folder)]
    if not runs:
        return
    with writing(output or runs[0]):
        found, _ = write_report(runs, output)
    print_figures(found)
    print_papers(found)
