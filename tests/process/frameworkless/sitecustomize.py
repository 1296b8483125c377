"""Python imports this at its start when this folder is on its path: a machine on which no framework is installed, or only
one of them (`SWARM_TEST_ABSENT`)."""

import os
import sys
from importlib.abc import MetaPathFinder

ABSENT = os.environ.get("SWARM_TEST_ABSENT", "torch mlx").split()


class Nowhere(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Nowhere())
