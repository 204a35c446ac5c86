"""The command ``grace-torchrec``: names of sub-commands, exit codes, errors on one line.

Each sub-command lives in a file of its own and is imported when it is called, so ``--help`` loads
no torch.  Exit codes: 0 finished, 1 a check said no, 2 a wrong call, wrong input or a result that could
not be written, 70 a fault of this program, 130 interrupted (Ctrl-C), 141 nobody reads the output any
more (``| head``), 143 terminated (SIGTERM).  No error shows a traceback, unless ``--traceback`` asks for it.
"""

import codecs
import errno
import io
import logging
import os
import select
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

import grace_torchrec
from grace_torchrec.errors import GraceError
from grace_torchrec.interrupts import INTERRUPTED, exit_code, raising_on_sigterm

PROGRAM = "grace-torchrec"
WRONG_INPUT, FAULT = 2, 70
NOBODY_READS = 141  # as a shell tells of SIGPIPE


@dataclass(frozen=True)
class SubCommand:
    """Where a sub-command lives (``module:attribute``) and the line that ``--help`` shows for it."""

    place: str
    help: str


SUB_COMMANDS = {
    "calibrate": SubCommand(
        "grace_torchrec.cli.calibrate:calibrate_command",
        "Measure this machine's memories for plans.",
    ),
    "convert": SubCommand(
        "grace_torchrec.cli.convert:convert", "Turn a model and its plan into a served folder."
    ),
    "demo": SubCommand(
        "grace_torchrec.cli.demo:demo", "Run the whole job on a trace, with measured numbers."
    ),
    "diff": SubCommand(
        "grace_torchrec.cli.diff:diff", "Compare two plans: what moved, and what it costs."
    ),
    "doctor": SubCommand(
        "grace_torchrec.cli.doctor:doctor", "Check this installation and say how to mend it."
    ),
    "inspect": SubCommand(
        "grace_torchrec.cli.inspect:inspect", "Show what a plan puts where, and why."
    ),
    "plan": SubCommand(
        "grace_torchrec.cli.plan:plan", "Plan what to store beside a model's tables, and where."
    ),
    "profile": SubCommand(
        "grace_torchrec.cli.profile:profile", "Turn a trace into a profile folder."
    ),
    "report": SubCommand("grace_torchrec.cli.report:report", "Write a plan as one HTML page."),
    "schedule": SubCommand(
        "grace_torchrec.cli.schedule:schedule", "Schedule a model's operators over streams."
    ),
    "serve-bench": SubCommand(
        "grace_torchrec.cli.serve_bench:serve_bench",
        "Load an engine from another process, beside stock.",
    ),
    "simulate": SubCommand(
        "grace_torchrec.cli.simulate:simulate_command", "Simulate concurrent queries of a model."
    ),
}


@dataclass
class Shown:
    """What a call shows of its errors."""

    traceback: bool = False


class Raised(Exception):
    """Carries, as its cause, an error that click and Python would take for an end that was asked for."""


@contextmanager
def _told_apart() -> Iterator[None]:
    """Tell apart what click takes for one: the end of a command, and errors of code that it calls.

    A broken pipe is an ending of its own where it is that of an output; click would end it as a check
    that said no.  Of a user's model, it is an error like any other, and so are the end of a file, which
    is an interrupt to click, and ``sys.exit``.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and _output_error() == errno.EPIPE:
            raise click.exceptions.Exit(NOBODY_READS) from None
        is_plain = isinstance(error, Exception) and not isinstance(
            error, EOFError | BrokenPipeError
        )
        if is_plain or isinstance(error, KeyboardInterrupt):
            raise
        raise Raised from error


def _output_error() -> int:
    """Return the number of the error that standard output or standard error ends in, or 0."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, AttributeError):  # closed, or none
            try:
                stream.write("")
                stream.flush()
                poll = select.poll()
                poll.register(stream.fileno(), 0)
                if any(event & select.POLLERR for _, event in poll.poll(0)):
                    return errno.EPIPE
            except io.UnsupportedOperation:
                continue  # no file of the system
            except OSError as error:
                return error.errno or errno.EIO
    return 0


class LazyGroup(click.Group):
    """A click group that imports a sub-command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the sub-commands, in the order of the alphabet."""
        return sorted(SUB_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one sub-command; None for an unknown name."""
        if cmd_name not in SUB_COMMANDS:
            return None
        module, _, attribute = SUB_COMMANDS[cmd_name].place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a sub-command; of an unknown one, tell those that are written alike."""
        alike = get_close_matches(args[0], SUB_COMMANDS, cutoff=0.5)
        if args[0] in SUB_COMMANDS or args[0].startswith("-") or not alike:
            return super().resolve_command(ctx, args)
        ctx.fail(f"No such command {args[0]!r}: {' or '.join(alike)} is written alike.")

    def make_context(self, *args: Any, **given: Any) -> click.Context:
        """Read the arguments; ``--help`` prints here."""
        with _told_apart():
            return super().make_context(*args, **given)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a sub-command."""
        with _told_apart():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of sub-commands from their help lines, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, SUB_COMMANDS[name].help) for name in self.list_commands(ctx)]
            )


@click.group(
    cls=LazyGroup, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(grace_torchrec.__version__, prog_name=PROGRAM)
@click.option("--traceback", "shows_traceback", is_flag=True, help="Show where an error came from.")
@click.pass_obj
def cli(shown: "Shown | None", shows_traceback: bool) -> None:
    """Store the partial sums that a TorchRec model's embedding lookups ask for again and again.

    Results go to standard output. What takes long says on standard error what it does: at once on a
    terminal, in a line every 30 seconds elsewhere.

    What you named with -o is replaced by a result of the same kind, and nothing else is; what you did
    not name (as the folder "plan") is never replaced.

    Exit codes: 0 finished, 1 a check said no, 2 a wrong call, a wrong input or nothing to write to,
    70 a fault of this program, 130 interrupted, 141 nobody reads the output, 143 terminated.
    """
    if shown is not None:
        shown.traceback = shows_traceback


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; ``args`` default to those of the process.

    Errors go to standard error on one line, so standard output holds results only.
    """
    codecs.register_error("grace-show", _shown)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="grace-show")
    try:
        with raising_on_sigterm():
            code = _flushed(_run(args))
    except KeyboardInterrupt as error:
        code = exit_code(error) or INTERRUPTED
    sys.exit(code)


def _shown(error: UnicodeError) -> tuple[str | bytes, int]:
    """Show what the terminal's encoding lacks: bytes of a path as they are, letters as escapes."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def _run(args: Sequence[str] | None) -> int:
    """Run the command line and return its exit code."""
    # TorchRec asks torch.fx a question that torch.fx answers with a warning to its authors.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    shown = Shown()
    try:
        result = cli.main(args, prog_name=PROGRAM, standalone_mode=False, obj=shown)
    except (click.Abort, KeyboardInterrupt) as error:
        return exit_code(error) or exit_code(error.__cause__) or INTERRUPTED
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else PROGRAM
        told = error.format_message().rstrip(".")
        return _fail(f"{told}{'' if told.endswith('?') else '.'} Try '{where} --help'.")
    except click.ClickException as error:
        return _fail(error.format_message())
    except Exception as error:
        cause = error.__cause__ if isinstance(error, Raised) else None
        code = exit_code(cause or error)
        if code is not None:
            return code
        if shown.traceback:
            traceback.print_exception(cause or error)
        return _failed(cause or error)
    return result if isinstance(result, int) else 0


def _flushed(code: int) -> int:
    """Write what waits for standard output; return the exit code, another where that fails."""
    if sys.stdout is None:  # closed by whoever called
        return code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = NOBODY_READS
    except (OSError, ValueError) as error:
        code = _fail(f"standard output: {getattr(error, 'strerror', None) or error}")
    else:
        return code
    with suppress(OSError, ValueError):  # the interpreter flushes once more: into nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _failed(error: BaseException) -> int:
    """Tell an error of a command; return its exit code."""
    from grace_torchrec.cli.words import in_own_words, unforeseen

    if isinstance(error, GraceError):
        return _fail(in_own_words(str(error)))
    if isinstance(error, ImportError):
        return _fail(
            f"{error.name or error} cannot be imported; '{PROGRAM} doctor' says how to mend it"
        )
    is_gone = isinstance(error, FileNotFoundError) and not _is_folder(".")  # no path resolves
    if isinstance(error, OSError) and (is_gone or error.filename is not None or _output_error()):
        return _fail(_of_a_file(error))
    message, is_users = unforeseen(error, f"{PROGRAM} --traceback COMMAND ...")
    if isinstance(error, OSError) and not is_users:
        return _fail(_of_a_file(error))
    return _fail(message, WRONG_INPUT if is_users else FAULT)


def _of_a_file(error: OSError) -> str:
    """Tell what the system refused, and for which file."""
    if error.errno == errno.ENOENT and not _is_folder("."):
        return "the current folder is gone; change to one that is there"
    named = (error.filename, error.filename2)
    where = ", ".join(os.fsdecode(name) for name in named if isinstance(name, str | bytes))
    return f"{where or 'standard output or a file'}: {error.strerror or error}"


def _is_folder(path: str) -> bool:
    """Tell whether a folder is there, also where the process stands in one that was removed."""
    try:
        return bool(os.getcwd()) and os.path.isdir(path)
    except OSError:
        return False


def _fail(message: str, code: int = WRONG_INPUT) -> int:
    """Print one line on standard error; return the exit code, that of a wrong call by default."""
    with suppress(OSError, ValueError):  # nobody reads it; the exit code tells
        click.echo(f"error: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
