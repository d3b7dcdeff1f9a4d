"""What is opened is a file: neither a folder, nor a pipe that nobody writes to and that would be waited for without end."""

from __future__ import annotations

from pathlib import Path

__all__ = ["check_file"]


def check_file(path: Path, advice: str = "Check the path.") -> None:
    """Refuse what is no regular file, before anybody opens it: of a pipe or a device the opening alone may never end.

    Parameters
    ----------
    path : Path
        What a reader is about to open. Links are followed.
    advice : str
        What to do if nothing is there.

    Examples
    --------
    >>> check_file(Path(__file__))
    >>> check_file(Path(__file__).parent)
    Traceback (most recent call last):
    ...
    ValueError: ...files is a folder; expected a file. Check the path, or put the file there.
    >>> check_file(Path("nowhere.npz"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: There is no file nowhere.npz. Check the path.
    """
    if path.is_file():
        return
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}. {advice}")
    kind = "a folder" if path.is_dir() else "a pipe, a device or the like"
    raise ValueError(f"{path} is {kind}; expected a file. Check the path, or put the file there.")
