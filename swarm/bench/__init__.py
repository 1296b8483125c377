"""What `swarm bench` measures: how much CPU time and memory an exchange takes beside what no program can do without.

Every measurement is a process of its own (`python -m swarm.bench PART OPTIONS`), so that each begins with the same memory.
Times are CPU times: other programs of the machine count for little in them.
"""
