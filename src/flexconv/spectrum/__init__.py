"""How high the frequencies of a learned kernel reach, and a penalty on those its grid cannot hold.

`max_frequency` is an analytic bound, `measured_bandwidth` a measurement, and `alias_penalty` keeps the bound below the
Nyquist limit during training. `_frequency.py` derives the formulas.
"""

from ._bandwidth import bandwidth as bandwidth
from ._bandwidth import dense_kernel as dense_kernel
from ._bandwidth import denser as denser
from ._bandwidth import energy_spectrum as energy_spectrum
from ._bandwidth import uncropped as uncropped
from ._spectrum import FORMULAS as FORMULAS
from ._spectrum import METHODS as METHODS
from ._spectrum import alias_penalty as alias_penalty
from ._spectrum import formulas_of as formulas_of
from ._spectrum import max_frequency as max_frequency
from ._spectrum import measured_bandwidth as measured_bandwidth
from ._spectrum import no_spectrum as no_spectrum
from ._spectrum import nyquist as nyquist

__all__ = ["FORMULAS", "METHODS", "alias_penalty", "max_frequency", "measured_bandwidth", "nyquist"]
