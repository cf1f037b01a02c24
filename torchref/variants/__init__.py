"""One file, one attention formula."""
