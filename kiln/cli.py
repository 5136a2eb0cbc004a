"""Between Invoke and the package: one place that turns errors into words and exit codes."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from kiln.errors import CheckFailed, KilnError, UserError

Task = TypeVar("Task", bound=Callable[..., Any])


def reported(task: Task) -> Task:
    """Run a task's body; print an error as `error: …` with its hint and end with its exit code, 130 on Ctrl-C."""

    @functools.wraps(task)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            done = task(*args, **kwargs)
            sys.stdout.flush()  # a reader that went away shows here, not when Python ends
            return done
        except UserError as error:
            for problem in error.problems:
                print(f"error: {problem}", file=sys.stderr)
            sys.exit(error.exit_code)
        except (CheckFailed, KilnError) as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            print("interrupted: what was finished is kept, the same command goes on from there", file=sys.stderr)
            sys.exit(130)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except Exception:
            traceback.print_exc()
            print("error: this is a fault of kiln itself, please report it with the lines above", file=sys.stderr)
            sys.exit(KilnError.exit_code)

    return wrapper  # type: ignore[return-value]


def emit(data: object) -> None:
    """Print data as JSON, for machines."""
    print(json.dumps(data, indent=1, sort_keys=True))


def announce(line: str) -> None:
    """Tell the user what is being done on the host."""
    print(f"kiln: {line}", file=sys.stderr)


def words(text: str) -> tuple[str, ...]:
    """Split a comma- or blank-separated option."""
    return tuple(text.replace(",", " ").split())
