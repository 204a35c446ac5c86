"""MODEL on the command line: a bundled name, or ``package.module:function``.

Flow: text -> *Example*: a model in eval mode and batches of positional arguments.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from grace_torchrec.errors import GraceError
from grace_torchrec.models.bundled import MODELS, Example, bundled


def load_model(text: str, *, to_plan: bool = False) -> Example:
    """Return the model that MODEL names.

    Args:
        text: ``dlrm``, ``wide_deep``, ``din``, ``bst``, or ``package.module:function``, a function
            that returns (model, example batches).
        to_plan: It must have tables of TorchRec: no bundled one has.

    Raises:
        GraceError: there is no such name, or the function returns something else.
    """
    if ":" not in text:
        if to_plan:
            raise GraceError(
                f"MODEL {text!r}: is not package.module:function, of a model with an "
                f"EmbeddingBagCollection; {', '.join(MODELS)} have none: schedule and simulate take them"
            )
        if text not in MODELS:
            raise GraceError(
                f"MODEL {text!r}: not one of {', '.join(MODELS)} and not package.module:function"
            )
        return bundled(text)
    make = load_function("MODEL", text)
    try:
        found = make()
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from inside of the function: its own business
        raise GraceError(f"MODEL {text!r}: takes arguments ({error}); name one that takes none") from error  # fmt: skip
    return _checked(text, found)


def load_function(what: str, text: str) -> Callable[[], Any]:
    """Import the function that ``package.module:function`` names.

    Args:
        what: Name of the argument, for errors.
        text: The argument.

    Raises:
        GraceError: it cannot be imported, or is nothing to call.
    """
    module_name, _, function_name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules beside the user, as with python -m
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise GraceError(f"{what} {text!r}: its code needs {error.name}, which is not installed") from error  # fmt: skip
        raise GraceError(f"{what} {text!r}: cannot be loaded ({error}); check the name") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise GraceError(f"{what} {text!r}: cannot be loaded ({error}); check the name") from error
    if not callable(function):
        raise GraceError(f"{what} {text!r}: is no function; name one that takes no arguments")
    found: Callable[[], Any] = function
    return found


def _checked(text: str, found: Any) -> Example:
    """Return (model, batches) as an Example."""
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], nn.Module)):
        raise GraceError(f"MODEL {text!r}: returns no (model, example batches); return both")
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
