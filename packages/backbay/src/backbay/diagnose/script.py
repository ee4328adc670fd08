"""Runs a script as Python would, and looks at the loop in it. No torch here until it imports it.

The script is ``__main__``, has its own ``sys.argv`` and ``sys.path[0]``, and ends with its own exit
code, or with its own traceback.
"""

import builtins
import contextlib
import sys
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path

from backbay.diagnose.attaching import Made, attach
from backbay.registry.bridge import WaitingFinder

_DYNAMO = "torch._dynamo"
"""What torch.compile imports when it is called: nothing is compiled before."""
_INTERRUPTED = 130


class Script:
    """A script of the user's."""

    def __init__(self, file: Path, arguments: Sequence[str]) -> None:
        self._file = file
        self._arguments = list(arguments)
        self.unseen = ""
        """Why nothing was looked at; empty where something was."""

    def run(self, *, steps: int, made: Made) -> int:
        """Run it to its end, and return its exit code.

        Args:
            steps: that are timed, and as many that are profiled.
            made: called when its loop is diagnosed.

        Raises:
            SystemExit: the script raised it.
        """
        self.unseen = "nothing was compiled: the script never called torch.compile"
        with contextlib.ExitStack() as stack:

            def begin(_module: types.ModuleType) -> None:
                try:
                    stack.enter_context(attach(self._file.name, steps=steps, made=made))
                    self.unseen = ""
                except Exception as error:  # noqa: BLE001 (the script's import must not fail of it)
                    self.unseen = f"nothing could be watched: {error}"

            finder = WaitingFinder(_DYNAMO, begin)
            sys.meta_path.insert(0, finder)
            try:
                self._execute()
            except SystemExit:
                raise
            except BaseException as error:  # noqa: BLE001 (Python prints it, and so do we)
                trace = error.__traceback__
                while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                    trace = trace.tb_next
                sys.excepthook(type(error), error.with_traceback(trace), trace)
                stack.__exit__(type(error), error, trace)
                return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
            finally:
                if finder in sys.meta_path:
                    sys.meta_path.remove(finder)
        return 0

    def _execute(self) -> None:
        file = str(self._file)
        main = types.ModuleType("__main__")
        vars(main).update(
            __file__=file,
            __builtins__=builtins,
            __loader__=SourceFileLoader("__main__", file),
            __package__=None,
            __spec__=None,
            __cached__=None,
        )
        sys.argv[:] = [file, *self._arguments]
        if not sys.flags.safe_path:
            sys.path[0] = str(self._file.resolve().parent)
        sys.modules["__main__"] = main
        code = compile(self._file.read_bytes(), file, "exec", dont_inherit=True)
        exec(code, vars(main))  # noqa: S102 (it is what the user asked to run)
