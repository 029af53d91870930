"""Trained networks for flexconv: `flexconv.from_pretrained(name)` finds them here, `index.json` lists them."""
