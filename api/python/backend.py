"""Lets pip build the wheel from a clone (PEP 517): `pip install api/python`. SCons and a compiler do the work."""

import glob
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the tree and copies the wheel; returns its name."""
    if shutil.which('scons') is None:
        sys.exit('tributary: scons is missing: run tools/install-deps, which installs what the build needs')
    subprocess.run(['scons', '-s', 'wheel'], cwd=ROOT, check=True, stdout=sys.stderr)
    (wheel,) = glob.glob(os.path.join(ROOT, 'build', 'release', 'wheel', '*.whl'))
    shutil.copy(wheel, wheel_directory)
    return os.path.basename(wheel)
