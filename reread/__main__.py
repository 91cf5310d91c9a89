"""`python -m reread` and `torchrun -m reread`: the `reread` command."""

from reread.pipeline.cli import main

main()
