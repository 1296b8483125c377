"""Python imports this at its start when this folder is on its path: a machine on which no framework is installed."""

import sys
from importlib.abc import MetaPathFinder

ABSENT = ("torch", "mlx")


class Nowhere(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Nowhere())
