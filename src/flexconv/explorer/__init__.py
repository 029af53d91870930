"""An interactive page about a model: a single HTML file that needs no server and no internet connection.

    from flexconv.explorer import write_page
    write_page(model, "model.html")

The page shows the kernel, mask and spectrum of every FlexConv layer at several resolutions, and the kernel sizes of the
whole network. With the records and results of a training run, it also shows the training and the accuracy. With
`compare_with`, it shows two networks side by side. The command `flexconv explore MODEL` writes the same page.
"""

from ._network import Network as Network
from ._page import write_page as write_page

__all__ = ["Network", "write_page"]
