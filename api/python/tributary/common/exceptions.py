"""Horovod's place of its exceptions."""

from ..errors import HostsUpdatedInterrupt
from ..errors import JobLostError as HorovodInternalError

__all__ = ['HorovodInternalError', 'HostsUpdatedInterrupt']
