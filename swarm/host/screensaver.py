"""How long nobody has touched the keyboard and mouse of the X server that DISPLAY names: `python screensaver.py LIBX11 LIBXSS`
prints it, in milliseconds, and nothing where that server does not tell.

A program of its own: a server that does not answer is waited for without limit, and Xlib ends the process whose server goes.
Nothing of swarm is imported here, so that it starts in a moment.
"""

from __future__ import annotations

import ctypes
import sys


class _Info(ctypes.Structure):
    """XScreenSaverInfo of X11/extensions/scrnsaver.h."""

    _fields_ = (
        ("window", ctypes.c_ulong),
        ("state", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("since", ctypes.c_ulong),
        ("idle", ctypes.c_ulong),
        ("event_mask", ctypes.c_ulong),
    )


def idle_ms(libx11: str, libxss: str) -> int | None:
    """Raises OSError, AttributeError where a library is not what it is taken for."""
    x11, xss = ctypes.CDLL(libx11), ctypes.CDLL(libxss)
    x11.XOpenDisplay.restype = xss.XScreenSaverAllocInfo.restype = ctypes.c_void_p
    x11.XDefaultRootWindow.argtypes, x11.XDefaultRootWindow.restype = [ctypes.c_void_p], ctypes.c_ulong
    xss.XScreenSaverQueryInfo.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p]
    display = x11.XOpenDisplay(None)
    if not display:
        return None
    info = xss.XScreenSaverAllocInfo()
    if not info or not xss.XScreenSaverQueryInfo(display, x11.XDefaultRootWindow(display), info):
        return None
    return int(ctypes.cast(info, ctypes.POINTER(_Info)).contents.idle)


if __name__ == "__main__":
    found = idle_ms(*sys.argv[1:3])
    if found is not None:
        print(found)
