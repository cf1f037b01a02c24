"""The long sweep runs where its marker is asked for, and nowhere else."""


def pytest_collection_modifyitems(config, items):
    if "sweep" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("sweep")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
