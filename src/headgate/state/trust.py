"""Whom a local folder trusts: who can write there can make headgate run code.

State of `Update` is pickled, so whoever can plant a file in a checkpoint, or put another folder in
its place, runs code in the driver and in tasks. A folder that everybody may write to, or that
belongs to somebody else than this process's user (or root), is therefore refused. Where owners or
modes say nothing (some mounts show one owner for all files), HEADGATE_TRUST_FOLDERS=1 skips it.
"""

from __future__ import annotations

import os
import stat

from headgate.errors import UnsafeName, UntrustedFolder

VARIABLE = "HEADGATE_TRUST_FOLDERS"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
GROUP_FOLDER, GROUP_FILE = 0o2770, 0o660


def make_private_folder(path: str) -> None:
    """Create a folder, and those above it that are missing, for this user alone.

    Inside a folder that is group-writable and has the set-group-id bit (2770), the sign of a folder
    that a group shares, the group gets the same rights.
    """
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        make_private_folder(parent)
    try:
        os.mkdir(path, PRIVATE_FOLDER)
    except FileExistsError:
        return
    if is_of_group(parent):
        os.chmod(path, GROUP_FOLDER)


def is_of_group(folder: str) -> bool:
    mode = os.stat(folder).st_mode
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP)


def check_folder(path: str) -> None:
    """Make a folder if it is missing, and refuse it if others could plant something there."""
    make_private_folder(path)
    for entry in os.scandir(path):
        if entry.is_symlink() and not _is_inside(entry.path, path):
            raise UnsafeName(
                f"{entry.path} is a symbolic link that leads out of {path}. Move the whole folder, "
                "or mount what it should hold",
                uri=path,
                name=entry.name,
            )
    if os.environ.get(VARIABLE) == "1":
        return
    found = os.stat(path)
    if found.st_mode & stat.S_IWOTH:
        why, way_out = "everybody may write there", f"chmod o-w {path}"
    elif found.st_uid not in (0, os.geteuid()):
        why = f"it belongs to user {found.st_uid}, and this is user {os.geteuid()}"
        way_out = f"chown it, run as user {found.st_uid}"
    else:
        return
    raise UntrustedFolder(
        f"{path} cannot be trusted: {why}. Whoever can write there can make headgate run code, as "
        f"state may be pickled. {way_out}, or choose a folder that does not exist yet. If nobody "
        f"else can reach it (a container's volume, a mount that hides owners), set {VARIABLE}=1",
        uri=path,
        owner=found.st_uid,
        mode=stat.S_IMODE(found.st_mode),
    )


def _is_inside(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)
