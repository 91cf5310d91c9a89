"""The `reread` command, also as `python -m reread` and `torchrun -m reread`."""

from reread.preprocessing.errors import one_line
from reread.preprocessing.machine import check_system


def main() -> None:
    with one_line():
        check_system()  # before modules are imported that other systems lack
    from reread.pipeline.cli import main as run

    run()


if __name__ == "__main__":
    main()
