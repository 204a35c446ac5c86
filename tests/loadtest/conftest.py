"""Small collections and batches are made as the tests of modules/ make them."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "grace_modules_conftest", Path(__file__).parents[1] / "modules" / "conftest.py"
)
assert _spec is not None
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)
table_of, collection_of, batch_of = _shared.table_of, _shared.collection_of, _shared.batch_of
