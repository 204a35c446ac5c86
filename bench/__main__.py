"""``python -m bench``: run one case."""

from bench.run import main

main()
