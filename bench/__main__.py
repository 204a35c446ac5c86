"""``python -m bench``: run one case."""

import os

# Huge pages for every tensor, stock's and ours alike; torch reads this once, when it is loaded.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from bench.run import main

main()
