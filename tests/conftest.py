"""Shapes in the package's signatures are checked while the tests run."""

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("bespoke_solvers", "shapecheck.typechecker")

torch.set_num_threads(1)
settings.register_profile("default", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("default")
