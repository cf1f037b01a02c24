"""Our suites against PyTorch: `python -m benchmarks`."""
