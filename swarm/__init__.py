"""swarm: train one model together on the machines you own, over a shared folder.

The root is lazy: importing it pulls in neither numpy nor a framework.
"""

__version__ = "0.1.0"
