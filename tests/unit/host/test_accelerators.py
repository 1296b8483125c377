"""What other machines are told that this one trains on."""

from __future__ import annotations

from swarm.host.accelerators import accelerators, parse_cards

LISTED = "NVIDIA GeForce RTX 3090, 24576\nTesla T4, 15360\nNVIDIA H200, 143771\n"


def test_cards_by_the_names_that_people_use() -> None:
    assert parse_cards(LISTED) == [("RTX 3090", 24576 << 20), ("Tesla T4", 15360 << 20), ("H200", 143771 << 20)]
    assert parse_cards("") == []
    assert parse_cards("No devices were found\n") == []
    assert parse_cards("NVIDIA GeForce RTX 3090, [N/A]\n") == []


def test_this_machine_has_memory() -> None:
    names, memory_bytes = accelerators()
    assert memory_bytes > 1 << 28
    assert all(name.startswith(("mps ", "cuda ")) for name in names)
