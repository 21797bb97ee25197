"""What setup.cfg has no words for: the C bridge is built (setuptools takes extension modules from
here only; all else is in setup.cfg)."""

import runpy

from setuptools import setup

build = runpy.run_path("slurmmesh/_cffi/build.py")
setup(ext_modules=build["extensions"](), cmdclass={"build_ext": build["BuildExt"]})
