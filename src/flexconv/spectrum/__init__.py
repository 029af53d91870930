"""The frequencies of a learned kernel, and a penalty that keeps them below the Nyquist frequency of the grid.

`max_frequency` is an analytic bound. `measured_bandwidth` and `energy_beyond_nyquist` measure the kernel between its
taps; `folded_energy` is the part of that energy that costs accuracy at another resolution. `alias_penalty` keeps the
bound below the Nyquist frequency during training. All frequencies are in cycles per unit of the grid on [−1, 1], on
which k taps represent frequencies up to (k − 1)/4.

**Gabor networks.** The spectrum of a Gabor filter exp(−½ Σ_d (γ_d (x_d − μ_d))²) sin(W x + b) consists of two Gaussians
of width γ, centered at ±W. When filters are multiplied, the frequencies of their sines add, as do the squares of the
widths of their envelopes. The mask is one more envelope. A network of filters l is a sum of such products, each with
one channel c_l of every filter. Along axis d, counting h standard deviations (`cutoff`), the product with the highest
frequency reaches

    f_d = max over c_1, c_2, … of ( Σ_l |W_lcd| + h √( Σ_l p_lcd + m_d ) ) / 2π,      m_d = 1/σ_d² of the mask

where p is the precision of an envelope along the axis. It equals γ_d² for an axis-aligned envelope, follows from a
rotation for a steerable one, and is 0 for Fourier networks, which have no envelope.

**N-Jets.** An N-Jet of order N is a polynomial of degree N times a Gaussian: f_d = (√N + h) √(1/σ_d² + m_d) / 2π.

**Not counted.** Cropping, the edge of the domain and the end of a causal kernel are discontinuities and add frequencies
that the formulas do not count. `measured_bandwidth` includes the last two.
"""

from ._bandwidth import bandwidth as bandwidth
from ._bandwidth import energy_spectrum as energy_spectrum
from ._bandwidth import measured_bandwidth as measured_bandwidth
from ._bounds import FORMULAS as FORMULAS
from ._bounds import available_formulas as available_formulas
from ._bounds import max_frequency as max_frequency
from ._bounds import nyquist as nyquist
from ._energy import MUCH_FOLDED_ENERGY as MUCH_FOLDED_ENERGY
from ._energy import energy_beyond_nyquist as energy_beyond_nyquist
from ._energy import folded_energy as folded_energy
from ._formulas import filter_frequencies as filter_frequencies
from ._penalty import METHODS as METHODS
from ._penalty import RENAMED_METHODS as RENAMED_METHODS
from ._penalty import alias_penalty as alias_penalty
from ._report import MUCH_TOTAL_ENERGY as MUCH_TOTAL_ENERGY
from ._report import SOME_TOTAL_ENERGY as SOME_TOTAL_ENERGY
from ._report import AliasReport as AliasReport
from ._report import alias_report as alias_report

__all__ = [
    "FORMULAS",
    "METHODS",
    "MUCH_FOLDED_ENERGY",
    "MUCH_TOTAL_ENERGY",
    "SOME_TOTAL_ENERGY",
    "AliasReport",
    "alias_penalty",
    "alias_report",
    "available_formulas",
    "bandwidth",
    "energy_beyond_nyquist",
    "energy_spectrum",
    "filter_frequencies",
    "folded_energy",
    "max_frequency",
    "measured_bandwidth",
    "nyquist",
]
