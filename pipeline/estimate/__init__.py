"""The estimate that `reread plan` prints: what a recipe takes on a cluster, before any of it exists."""
