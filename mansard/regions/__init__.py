"""What backends of devices that compile regions share: named ops, partitioning, writers of formats."""
