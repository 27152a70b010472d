"""The commonest surprise of a trial: a file that is there for the script, and not where the trial runs."""

from collections.abc import Sequence
from traceback import FrameSummary

HINT = "trials run in an empty folder of their own: use an absolute path"


def hint(error: BaseException, frames: Sequence[FrameSummary]) -> str | None:
    """What to do about a relative path that is not there; None for any other error.

    Programs that are not there raise the same error: those are left alone. Libraries that raise it without naming the
    path (numpy's loadtxt) are taken at their text, where its first word looks like a file's name.
    """
    if not isinstance(error, FileNotFoundError) or (frames and frames[-1].filename.endswith("subprocess.py")):
        return None
    path = error.filename
    if path is None:
        path = str(error.args[0]).partition(" ")[0].strip("'\"") if error.args else ""
        if "." not in path.strip("."):
            return None
    if isinstance(path, bytes):
        path = path.decode(errors="replace")
    is_relative = isinstance(path, str) and path != "" and not path.startswith("/")
    return HINT if is_relative else None
