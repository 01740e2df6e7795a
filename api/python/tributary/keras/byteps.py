"""BytePS's place of the binding of Keras: byteps.keras is tributary.keras with BytePS's callbacks."""

from . import *  # noqa: F401,F403
from . import byteps_callbacks as callbacks  # noqa: F401
