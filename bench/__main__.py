"""``python -m bench``: run one case."""

import logging
import os

# Huge pages for every tensor, stock's and ours alike; torch reads this once, when it is loaded.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from bench.run import main

# TorchRec asks torch.fx a question that torch.fx answers with a warning to its authors.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
main()
