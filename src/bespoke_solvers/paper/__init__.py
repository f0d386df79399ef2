"""The experiments of "Bespoke Solvers for Generative Flow Models" (Shaul et al. 2023), measured again on any model."""
