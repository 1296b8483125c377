"""swarm in a training loop of one's own. What is meant for users stands in the package root: `swarm.Session` and so on."""
