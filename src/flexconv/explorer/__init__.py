"""An interactive page about a model: a single HTML file that needs no server and no internet connection.

    from flexconv.explorer import write_page
    write_page(model, "model.html")

The page shows the kernel, mask and spectrum of every FlexConv layer at several resolutions, and the kernel sizes of the
whole network. With the records of a training run, it also shows the training. The command
`flexconv inspect MODEL --html page.html` writes the same page.
"""

from ._page import write_page as write_page

__all__ = ["write_page"]
