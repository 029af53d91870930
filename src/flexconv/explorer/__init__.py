"""A page to explore a model with: one HTML file that needs no network and no server.

    from flexconv.explorer import write_page
    write_page(model, "model.html")

It shows the layers, their kernels with masks and spectra at several resolutions, sizes by depth and, where there are
records of it, the training. The command is `flexconv inspect MODEL --html page.html`.
"""

from ._page import write_page as write_page

__all__ = ["write_page"]
