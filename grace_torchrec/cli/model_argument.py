"""MODEL on the command line: a bundled name, or ``package.module:function``.

Flow: text -> *Example*: a model in eval mode and batches of positional arguments.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from grace_torchrec.arguments import told
from grace_torchrec.cli.function_argument import call_function, spelled
from grace_torchrec.errors import GraceError
from grace_torchrec.models.bundled import MODELS, Example, bundled
from grace_torchrec.strict_files import kind_of

RETURNED = "(model, example batches)"


def load_model(text: str, *, to_plan: bool = False) -> Example:
    """Return the model that MODEL names.

    Args:
        text: ``dlrm``, ``wide_deep``, ``din``, ``bst``, or ``package.module:function``, a function
            that returns (model, example batches).
        to_plan: It must have tables of TorchRec: no bundled one has.

    Raises:
        GraceError: there is no such name, or the function returns something else.
    """
    if text in MODELS and to_plan:
        raise GraceError(
            f"MODEL {text!r}: is bundled and has no EmbeddingBagCollection to plan: schedule and simulate "
            f"take it; here, write my_models:make, a function that returns {RETURNED}"
        )
    if text in MODELS:
        return bundled(text)
    if ":" not in text and (kind := kind_of(Path(text))) is not None:
        raise GraceError(
            f"MODEL {text!r}: is a {kind} folder; give the function that makes the model, as my_models:make"
        )
    if ":" not in text:
        others = "" if to_plan else f", or one of {', '.join(MODELS)}"
        raise GraceError(
            f"MODEL {text!r}: names no function; {spelled(text)}, which returns {RETURNED}{others}"
        )
    return _checked(text, call_function("MODEL", text))


def _checked(text: str, found: Any) -> Example:
    """Return (model, batches) as an Example."""
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], nn.Module)):
        raise GraceError(f"MODEL {text!r}: returns {told(found)}; return {RETURNED}, both of them")
    model, batches = found
    if not isinstance(batches, list | tuple) or (
        isinstance(batches, tuple) and batches and all(map(_is_argument, batches))
    ):
        raise GraceError(
            f"MODEL {text!r}: its batches are no list of batches; return (model, [batch, ...])"
        )
    batches = tuple(tuple(b) if isinstance(b, list | tuple) else (b,) for b in batches)
    if not batches:
        raise GraceError(f"MODEL {text!r}: returns no example batch; return one or more")
    return Example(text, model.eval(), batches)


def _is_argument(value: Any) -> bool:
    """Tell what a model is called with from a batch of it."""
    return isinstance(value, Tensor) or hasattr(value, "lengths_or_none")
