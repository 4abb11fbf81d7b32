"""A benchmark as a page, as Markdown and as JUnit: pure functions of cells that were measured and judged."""
