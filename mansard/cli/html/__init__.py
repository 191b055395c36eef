"""The HTML page of `mansard explain --html` and `mansard bench --html`."""
