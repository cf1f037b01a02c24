"""What attention means in a library, as executable checks: masks, alignment, dtypes, dropout, gradients.

`run("flax.nnx")` checks a library, `run(target)` anything that implements `Target`: one method, `attend`.
"""

from .checks import CHECKS as CHECKS
from .finding import Check as Check
from .running import Result as Result
from .running import run as run
from .target import Answer as Answer
from .target import NotOffered as NotOffered
from .target import Request as Request
from .target import Target as Target
from .targets import TARGETS as TARGETS
